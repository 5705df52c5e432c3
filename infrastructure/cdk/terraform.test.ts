import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { parse } from "@cdktf/hcl2json";
import { dashboard, expectedWidgets, holders, resolved, template, withoutEndpoint, type Json } from "./template.ts";

const read = (file: string): Promise<Json> =>
  parse(file, readFileSync(new URL(`../terraform/${file}`, import.meta.url), "utf8"));

const main = await read("main.tf");
const drawn = await read("dashboard.tf");
const variables = (await read("variables.tf")).variable;
await read("outputs.tf");

test("the Terraform table is that of template.yaml", () => {
  const [table] = main.resource.aws_dynamodb_table.locks;
  const written = resolved(template.Resources.LockTable.Properties, { IsProtected: true });
  const { name, dynamic, ...settings } = table;
  assert.equal(name, "${var.table_name}");
  // Without the variable, there is no such block, as in template.yaml.
  assert.deepEqual(Object.keys(dynamic), ["server_side_encryption"]);
  assert.match(dynamic.server_side_encryption[0].for_each, /^\$\{var\.kms_key_arn == null \? \[\] :/);
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

test("the Terraform dashboard has widgets of template.yaml, in their order", () => {
  const [{ function: label, graphs, widgets }] = drawn.locals;
  const filled = (text: string) =>
    text
      .replaceAll("${local.function}", label)
      .replaceAll("$${", "${")
      .replaceAll("${local.names}", '"FUNCTIONS"')
      .replaceAll("${aws_dynamodb_table.locks.name}", "${LockTable}");
  const expression = /expression = "(.*)"\n/.exec(widgets)?.[1].replaceAll('\\"', '"');
  assert.ok(expression);
  const made = graphs.map(({ title, unit, metrics = [], searches = [] }: Json) => ({
    title,
    yAxis: { left: { min: 0, showUnits: false, ...(unit ? { label: unit } : {}) } },
    metrics: [
      ...(typeof metrics === "string"
        ? // A metric of each function, whose texts are the namespace, the metric, the dimension, the statistic and the label.
          [[...metrics.matchAll(/"([^"]+)"/g)].map(([, text]) => text)].map(([namespace, metric, dimension, stat, label]) =>
            filled(`${namespace} ${metric} ${dimension} FUNCTIONS ${stat}: ${label}`),
          )
        : metrics.map((metric: any[]) => {
            const { stat, label } = metric.at(-1);
            return filled(`${metric.slice(0, -1).join(" ")} ${stat}: ${label}`);
          })),
      ...searches.map((search: string[]) =>
        filled(`${expression.replace(/\$\{search\[(\d)\]\}/g, (_, at) => search[at])}: ${label} ${search[3]}`),
      ),
    ],
  }));
  assert.equal(made.length, 12);
  assert.deepEqual(made, expectedWidgets(made.map(({ title }: Json) => title)));
  const [{ dashboard_body: body }] = drawn.resource.aws_cloudwatch_dashboard.locks;
  assert.ok(body.includes(`start = "${dashboard.start}"`));
});

test("the widget of the holders that the Terraform module is tested with is that of template.yaml", () => {
  const tested = JSON.parse(readFileSync(new URL("../terraform/tests/holders.json", import.meta.url), "utf8"));
  assert.deepEqual(withoutEndpoint(tested), withoutEndpoint(holders));
});
