import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { parse } from "@cdktf/hcl2json";
import { resolved, template, type Json } from "./template.ts";

const read = (file: string): Promise<Json> =>
  parse(file, readFileSync(new URL(`../terraform/${file}`, import.meta.url), "utf8"));

const main = await read("main.tf");
const variables = (await read("variables.tf")).variable;
await read("outputs.tf");

test("the Terraform table is that of template.yaml", () => {
  const [table] = main.resource.aws_dynamodb_table.locks;
  const written = resolved(template.Resources.LockTable.Properties, { IsProtected: true });
  const { name, ...settings } = table;
  assert.equal(name, "${var.table_name}");
  assert.deepEqual(settings, {
    billing_mode: written.BillingMode,
    hash_key: written.KeySchema[0].AttributeName,
    attribute: written.AttributeDefinitions.map((each: Json) => ({ name: each.AttributeName, type: each.AttributeType })),
    ttl: [
      {
        attribute_name: written.TimeToLiveSpecification.AttributeName,
        enabled: written.TimeToLiveSpecification.Enabled,
      },
    ],
    server_side_encryption: [{ enabled: written.SSESpecification.SSEEnabled }],
    point_in_time_recovery: [{ enabled: written.PointInTimeRecoverySpecification.PointInTimeRecoveryEnabled }],
    deletion_protection_enabled: "${var.deletion_protection}",
  });
  assert.equal(variables.deletion_protection[0].default, written.DeletionProtectionEnabled);
});

test("the Terraform policy has these actions, this resource and this condition", () => {
  const [document] = main.data.aws_iam_policy_document.locks;
  assert.equal(document.statement.length, 1);
  const [{ actions, ...statement }] = document.statement;
  assert.deepEqual(actions.match(/"dynamodb:\w+"/g), [
    '"dynamodb:UpdateItem"',
    '"dynamodb:GetItem"',
    '"dynamodb:ConditionCheckItem"',
  ]);
  assert.match(actions, /each\.value\.read \? \["dynamodb:GetItem"\]/);
  assert.match(actions, /each\.value\.condition_checks \? \["dynamodb:ConditionCheckItem"\]/);
  assert.deepEqual(statement, {
    effect: "Allow",
    resources: ["${aws_dynamodb_table.locks.arn}"],
    condition: [
      { test: "ForAllValues:StringLike", variable: "dynamodb:LeadingKeys", values: "${each.value.keys}" },
    ],
  });
});

test("the Terraform alarms are those of template.yaml", () => {
  const [alarm] = main.resource.aws_cloudwatch_metric_alarm.locks;
  const alarms: Json = main.locals[0].alarms;
  const pairs = {
    errors: "NightlyReportErrors",
    lost: "NightlyReportLost",
    taken_over: "NightlyReportTakenOver",
    refused: "NightlyReportRefused",
    in_progress: "OrderApiRefused",
  };
  assert.deepEqual(Object.keys(alarms).sort(), Object.keys(pairs).sort());
  for (const [name, logicalId] of Object.entries(pairs)) {
    const written = resolved(template.Resources[logicalId].Properties, { HasAlarmTopic: false });
    const { namespace, metric, labels, threshold } = alarms[name];
    assert.deepEqual(
      {
        Namespace: namespace,
        MetricName: metric,
        Labels: labels,
        Statistic: alarm.statistic,
        Period: alarm.period,
        EvaluationPeriods: alarm.evaluation_periods,
        ComparisonOperator: alarm.comparison_operator,
        Threshold: threshold === "${var.refused_threshold}" ? variables.refused_threshold[0].default : threshold,
        TreatMissingData: alarm.treat_missing_data,
      },
      {
        ...Object.fromEntries(
          ["Namespace", "MetricName", "Statistic", "Period", "EvaluationPeriods", "ComparisonOperator", "Threshold"].map(
            (key) => [key, written[key]],
          ),
        ),
        Labels: Object.fromEntries(
          written.Dimensions.slice(1).map(({ Name, Value }: Json) => [Name, Value]),
        ),
        TreatMissingData: written.TreatMissingData,
      },
      name,
    );
  }
});
