import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { delimiter, dirname, join } from "node:path";
import { test } from "node:test";
import { App, Duration, Stack } from "aws-cdk-lib";
import { Match, Template } from "aws-cdk-lib/assertions";
import * as kms from "aws-cdk-lib/aws-kms";
import * as lambda from "aws-cdk-lib/aws-lambda";
import * as sns from "aws-cdk-lib/aws-sns";
import * as sqs from "aws-cdk-lib/aws-sqs";
import { Construct } from "constructs";
import { LambdaLocks, type LambdaLocksProps, type LockGrants } from "./lambda-locks.ts";
import {
  dashboard,
  definition,
  expectedWidgets,
  holders,
  resolved,
  template,
  widget,
  withoutEndpoint,
  type Json,
} from "./template.ts";

function stack(props?: LambdaLocksProps) {
  const stack = new Stack(new App(), "stack");
  const locks = new LambdaLocks(stack, "Locks", props);
  const fn = new lambda.Function(stack, "Report", {
    // Only these runtimes take inline code.
    runtime: lambda.Runtime.NODEJS_22_X,
    handler: "index.handler",
    code: lambda.Code.fromInline("not run"),
  });
  return { locks, fn, synthesised: () => Template.fromStack(stack) };
}

function only(resources: Json): Json {
  const all = Object.values(resources);
  assert.equal(all.length, 1);
  return all[0];
}

for (const deletionProtection of [true, false]) {
  test(`the table is that of template.yaml, with deletionProtection ${deletionProtection}`, () => {
    const made = only(stack({ deletionProtection }).synthesised().findResources("AWS::DynamoDB::Table"));
    assert.deepEqual(made, resolved(template.Resources.LockTable, { IsProtected: deletionProtection }));
  });
}

test("the table is protected unless it is said otherwise", () => {
  stack().synthesised().hasResource("AWS::DynamoDB::Table", {
    DeletionPolicy: "Retain",
    Properties: { DeletionProtectionEnabled: true },
  });
});

const KEYS = "example-nightly-report#*";

function statements(keys: string | string[], grants?: LockGrants): Json[] {
  const { locks, fn, synthesised } = stack();
  locks.grantLocks(fn, keys, grants);
  return only(synthesised().findResources("AWS::IAM::Policy")).Properties.PolicyDocument.Statement;
}

const ARN = { "Fn::GetAtt": [Match.stringLikeRegexp("^LocksTable"), "Arn"] };

function allows(keys: string | string[], grants: LockGrants, expected: Json) {
  const { locks, fn, synthesised } = stack();
  locks.grantLocks(fn, keys, grants);
  synthesised().hasResourceProperties("AWS::IAM::Policy", {
    PolicyDocument: { Version: "2012-10-17", Statement: Match.exact([expected]) },
  });
}

test("a lock, a permit, several keys, a takeover and a run need one action on their keys", () => {
  allows("report#*", {}, {
    Effect: "Allow",
    Action: "dynamodb:UpdateItem",
    Resource: ARN,
    Condition: { "ForAllValues:StringLike": { "dynamodb:LeadingKeys": ["report#*"] } },
  });
});

test("reads and checks are allowed on the same keys only", () => {
  allows(["report", "report#*"], { read: true, conditionChecks: true }, {
    Effect: "Allow",
    Action: ["dynamodb:UpdateItem", "dynamodb:GetItem", "dynamodb:ConditionCheckItem"],
    Resource: ARN,
    Condition: { "ForAllValues:StringLike": { "dynamodb:LeadingKeys": ["report", "report#*"] } },
  });
});

test("a grant is the statement that template.yaml has for the lock table", () => {
  const [granted] = statements(KEYS);
  const [written] = template.Resources.NightlyReportRole.Properties.Policies[0].PolicyDocument.Statement;
  // The data table's rows have the same prefix there.
  const [resource] = written.Resource;
  assert.deepEqual(resource, { "Fn::GetAtt": "LockTable.Arn" });
  const [keys] = Object.values(written.Condition["ForAllValues:StringLike"]) as Json[];
  assert.deepEqual(keys, { "Fn::Sub": KEYS.replace("example", "${AWS::StackName}") });
  assert.deepEqual(
    { ...granted, Resource: resource },
    {
      ...written,
      Resource: resource,
      Condition: { "ForAllValues:StringLike": { "dynamodb:LeadingKeys": [KEYS] } },
    },
  );
});

test("a grant of all keys, of none, or of a pattern within a key is refused", () => {
  for (const keys of ["*", "", "*#report", "rep*rt", "report#?", []]) {
    assert.throws(() => statements(keys), /grantLocks needs a key/, JSON.stringify(keys));
  }
});

test("hours that an alarm cannot have, and a dashboard of no function, are refused", () => {
  const { locks, fn } = stack();
  for (const hoursWithoutRelease of [0, 1.5, 169, Number.NaN]) {
    assert.throws(() => locks.addAlarms(fn, { hoursWithoutRelease }), /hoursWithoutRelease is .*, not a whole number/);
  }
  assert.throws(() => locks.addDashboard([]), /addDashboard needs at least one function/);
});

/** By their names as the Terraform module has them: the alarms of a function that is called FUNCTION. */
function made(): Record<string, Json> {
  const { locks, fn, synthesised } = stack();
  const [queue, deadLetterQueue] = ["Queue", "Letters"].map((id) => new sqs.Queue(Stack.of(locks), id));
  const { PaymentTimes, PaymentTimeout } = { ...template.Mappings, ...template.Parameters };
  const maxAge = Duration.seconds(PaymentTimes[PaymentTimeout.Default].Late);
  const { length } = locks.addAlarms(fn, {
    hoursWithoutRelease: template.Parameters.ReportHours.Default,
    queue: { queue, maxAge },
    deadLetterQueue,
  });
  locks.addTableAlarm();
  const resources: [string, Json][] = Object.entries(synthesised().findResources("AWS::CloudWatch::Alarm"));
  const alarms = resources.map(([id, { Properties }]) => {
    const [, name] = /^Locks(?:stackReport[0-9A-F]{8})?(\w+?)[0-9A-F]{8}$/.exec(id) ?? [];
    assert.ok(name, id);
    return [
      name.replace(/(?<!^)[A-Z]/g, "-$&").toLowerCase(),
      definition(Properties, (ref) =>
        String(ref)
          .replace(/^Report.*/, "FUNCTION")
          .replace(/^Queue.*/, "QUEUE")
          .replace(/^Letters.*/, "DEAD_LETTERS")
          .replace(/^LocksTable.*/, "TABLE"),
      ),
    ] as const;
  });
  assert.equal(alarms.length, length + 1);
  return Object.fromEntries(alarms);
}

/** By their names: the alarms of template.yaml, with the default of each parameter. */
function written(): Record<string, Json> {
  const resources: [string, Json][] = Object.entries(template.Resources);
  const alarms = resources.filter(([, { Type }]) => Type === "AWS::CloudWatch::Alarm");
  return Object.fromEntries(
    alarms.map(([id, { Properties }]) => [id, definition(resolved(Properties, { HasAlarmTopic: false }), (ref) => ref)]),
  );
}

test("the alarms are those of template.yaml", () => {
  const pairs: Record<string, string> = {
    errors: "NightlyReportErrors",
    "lock-errors": "NightlyReportLockErrors",
    "work-errors": "OrderApiWorkErrors",
    "item-errors": "PaymentQueueItemErrors",
    "http-problems": "OrderApiHttpProblems",
    lost: "NightlyReportLost",
    "taken-over": "NightlyReportTakenOver",
    refused: "NightlyReportRefused",
    "in-progress": "OrderApiRefused",
    missing: "NightlyReportMissing",
    waiting: "PaymentsWaiting",
    dead: "PaymentsDead",
    throttled: "LockTableThrottled",
  };
  const alarms = written();
  assert.deepEqual(Object.keys(made()).sort(), Object.keys(pairs).sort());
  for (const [name, alarm] of Object.entries(made())) {
    // The start of the text differs on purpose.
    const comparable = ({ AlarmDescription, ...rest }: Json, fn: string) =>
      JSON.parse(
        JSON.stringify({ ...rest, runbook: AlarmDescription.split(" Runbook: ")[1] })
          .replaceAll(fn, "FUNCTION")
          .replace("PaymentDeadLetters.QueueName", "DEAD_LETTERS")
          .replace("Payments.QueueName", "QUEUE")
          .replace("LockTable", "TABLE"),
      );
    const [fn] = /^(NightlyReport|OrderApi|PaymentQueue)/.exec(pairs[name]) ?? ["FUNCTION"];
    assert.deepEqual(comparable(alarm, "FUNCTION"), comparable(alarms[pairs[name]], fn), name);
  }
});

// `terraform test` compares the module's alarms with the file, and tests/tests/telemetry/alarms.rs says when each is raised.
test("alarms.json has the alarms: UPDATE=1 writes it", () => {
  const file = new URL("../alarms.json", import.meta.url);
  const alarms = `${JSON.stringify({ construct: made(), template: written() }, null, 2)}\n`;
  if (process.env.UPDATE) {
    writeFileSync(file, alarms);
  }
  assert.equal(readFileSync(file, "utf8"), alarms);
});

test("a payment that succeeds at its last delivery is not late, and its visibility is six timeouts", () => {
  for (const name of ["Payments", "OrderedPayments"]) {
    const { maxReceiveCount } = template.Resources[name].Properties.RedrivePolicy;
    for (const timeout of template.Parameters.PaymentTimeout.AllowedValues) {
      const withTimeout = (value: Json) => template.Mappings[value["Fn::FindInMap"][0]][timeout][value["Fn::FindInMap"][2]];
      const visible = withTimeout(template.Resources[name].Properties.VisibilityTimeout);
      assert.equal(visible, 6 * timeout);
      const late = withTimeout(template.Resources[`${name}Waiting`].Properties.Threshold);
      assert.equal(late, maxReceiveCount * visible + 3600);
    }
  }
});

test("functions of different scopes may have the same id", () => {
  const { locks, fn, synthesised } = stack();
  const { runtime } = fn;
  const code = lambda.Code.fromInline("not run");
  const other = new lambda.Function(new Construct(Stack.of(locks), "Shop"), "Report", { runtime, handler: "index.handler", code });
  const alarms = [fn, other].flatMap((each) => locks.addAlarms(each));
  synthesised().resourceCountIs("AWS::CloudWatch::Alarm", alarms.length);
});

test("each alarm of template.yaml links to the heading that the runbook has for it", () => {
  const runbook = readFileSync(new URL("../../lock/docs/operate/runbook.md", import.meta.url), "utf8");
  const links: Record<string, string> = {};
  // A row has the names of alarms, and then a link to their heading, within the page or by a label.
  for (const [, alarms, heading] of runbook.matchAll(/^\| (`[A-Z].*`) \| \[([^\]]+)\][[(]/gm)) {
    assert.ok(runbook.includes(`\n## ${heading}\n`), heading);
    // As rustdoc makes it.
    const anchor = heading.toLowerCase().replace(/[^\w\- ]/g, "").replaceAll(" ", "-");
    for (const [, alarm] of alarms.matchAll(/`(\w+)`/g)) {
      links[alarm] = `\${Runbook}#${anchor}`;
    }
  }
  const written: [string, Json][] = Object.entries(template.Resources);
  const alarms = written.filter(
    // Two alarms say nothing alone.
    ([id, { Type }]) => /Alarm$/.test(Type) && !["OrdersPlaced", "OrdersNotCounted"].includes(id),
  );
  assert.deepEqual(alarms.map(([id]) => id).sort(), Object.keys(links).sort());
  for (const [id, { Properties }] of alarms) {
    const text = Properties.AlarmDescription["Fn::Sub"];
    assert.ok(text.endsWith(`. Runbook: ${links[id]}`), `${id}: ${text}`);
    // CloudWatch takes no longer one. The address of a page of your own may be longer.
    assert.ok(text.length + 300 <= 1024, `${id}: ${text.length}`);
  }
});

test("the alarms link to the runbook of this version, or to that of your own", () => {
  const [, version] = /^version = "(.*)"$/m.exec(readFileSync(new URL("../../Cargo.toml", import.meta.url), "utf8")) ?? [];
  const ofVersion = `https://docs.rs/lambda-lock/${version}/lambda_lock/docs/operate/runbook/index.html`;
  assert.equal(template.Parameters.Runbook.Default, ofVersion);
  for (const runbook of [undefined, "https://wiki.example/locks"]) {
    const { locks, fn, synthesised } = stack({ runbook });
    const count = [...locks.addAlarms(fn), locks.addTableAlarm()].length;
    const alarms: Json[] = Object.values(synthesised().findResources("AWS::CloudWatch::Alarm"));
    const linked = alarms.filter(({ Properties }) => Properties.AlarmDescription.includes(` Runbook: ${runbook ?? ofVersion}#`));
    assert.equal(linked.length, count);
  }
});

test("the output has the policy of an operator that the runbook prints, as that of template.yaml does", () => {
  const runbook = readFileSync(new URL("../../lock/docs/operate/runbook.md", import.meta.url), "utf8");
  const [, printed] = /```json\n(.*?)```/s.exec(runbook) ?? [];
  assert.ok(printed);
  const expected = JSON.parse(printed);
  // `terraform test` compares the output of the module with this file.
  const ofModule = readFileSync(new URL("../terraform/tests/operator_policy.json", import.meta.url), "utf8");
  assert.deepEqual(JSON.parse(ofModule), expected);

  const arn = "arn:aws:dynamodb:eu-central-1:123456789012:table/locks";
  const names: Record<string, string> = {
    "LockTable.Arn": arn,
    "AWS::Partition": "aws",
    "AWS::Region": "eu-central-1",
    "AWS::AccountId": "123456789012",
  };
  const written = template.Outputs.OperatorPolicy.Value["Fn::Sub"];
  assert.deepEqual(JSON.parse(written.replace(/\$\{(.*?)\}/g, (_: string, name: string) => names[name])), expected);

  const [{ Value }]: Json[] = Object.values(stack().synthesised().findOutputs("*"));
  const parts: (string | Json)[] = Value["Fn::Join"][1];
  const made = parts.map((part) => (typeof part === "string" ? part : (names[part.Ref] ?? arn)));
  assert.deepEqual(JSON.parse(made.join("")), expected);
});

test("a key of your own encrypts the table", () => {
  const scope = new Stack(new App(), "stack");
  const encryptionKey = new kms.Key(scope, "Key");
  new LambdaLocks(scope, "Locks", { encryptionKey });
  Template.fromStack(scope).hasResourceProperties("AWS::DynamoDB::Table", {
    SSESpecification: {
      SSEEnabled: true,
      SSEType: "KMS",
      KMSMasterKeyId: { "Fn::GetAtt": [Match.stringLikeRegexp("^Key"), "Arn"] },
    },
  });
});

test("each alarm tells the topic", () => {
  const { locks, fn, synthesised } = stack();
  const topic = new sns.Topic(locks, "Topic");
  const alarms = [...locks.addAlarms(fn, { topic }), locks.addTableAlarm(topic)];
  synthesised().resourcePropertiesCountIs(
    "AWS::CloudWatch::Alarm",
    { AlarmActions: [{ Ref: Match.stringLikeRegexp("^LocksTopic") }] },
    alarms.length,
  );
});

test("the dashboard has widgets of template.yaml, in their order", () => {
  const { locks, fn, synthesised } = stack();
  locks.addDashboard([fn]);
  const body = only(synthesised().findResources("AWS::CloudWatch::Dashboard")).Properties.DashboardBody;
  const made = JSON.parse(text(body).replaceAll("<Report>", "FUNCTIONS"));
  assert.equal(made.start, dashboard.start);
  assert.equal(made.widgets.length, 12);
  const widgets: Json[] = made.widgets.map(widget);
  assert.deepEqual(widgets, expectedWidgets(widgets.map(({ title }) => title)));
});

test("the dashboard has the widget of the holders if its function is given", () => {
  const { locks, fn, synthesised } = stack();
  locks.addDashboard([fn], undefined, fn);
  const body = only(synthesised().findResources("AWS::CloudWatch::Dashboard")).Properties.DashboardBody;
  assert.match(JSON.stringify(body), /"endpoint\\":\\"",{"Fn::GetAtt":\["Report\w*","Arn"]}/);
  const { x, y, ...made } = JSON.parse(text(body)).widgets.at(-1);
  assert.deepEqual(withoutEndpoint(made), withoutEndpoint(holders));
});

test("the widgets of template.yaml fill the rows of the dashboard", () => {
  const widgets: Json[] = dashboard.widgets;
  const sizes = widgets.map(({ width, height }: Json) => `${width} × ${height}`);
  assert.deepEqual([...new Set(sizes)], ["8 × 6"]);
  assert.equal(widgets.length % 3, 0);
});

test("the command `cdk synth` synthesises the example for a project of a template", () => {
  const folder = mkdtempSync(join(tmpdir(), "lambda-locks-"));
  try {
    const project = join(folder, "nightly-report");
    mkdirSync(project);
    writeFileSync(join(project, "Cargo.toml"), '[package]\nname = "nightly-report"\n');
    // In place of cargo-lambda, which would compile the function. Its arguments are what it makes.
    const cargo = join(folder, "cargo");
    writeFileSync(cargo, '#!/bin/sh\n[ "$2" = --version ] || echo "$@" >"$4/bootstrap"\n', { mode: 0o755 });
    const cdk = ["node_modules/aws-cdk/bin/cdk", "synth", "--quiet", "--no-notices", "--context", `project=${project}`];
    execFileSync(process.execPath, cdk, {
      cwd: import.meta.dirname,
      env: {
        ...process.env,
        // The example runs in this Node.js, too.
        PATH: [folder, dirname(process.execPath), process.env.PATH].join(delimiter),
        CDK_DISABLE_CLI_TELEMETRY: "true",
      },
    });
    // cfn-lint checks what is left here.
    const output = join(import.meta.dirname, "cdk.out");
    const example = Template.fromJSON(JSON.parse(readFileSync(join(output, "nightly-report.template.json"), "utf8")));
    example.hasResourceProperties("AWS::Lambda::Function", {
      FunctionName: "nightly-report",
      Handler: "bootstrap",
      Runtime: "provided.al2023",
      Architectures: ["arm64"],
      Environment: {
        Variables: { LOCK_TABLE_NAME: { Ref: Match.stringLikeRegexp("^LocksTable") }, LOCK_KEY_PREFIX: "nightly-report#" },
      },
    });
    const { files } = JSON.parse(readFileSync(join(output, "nightly-report.assets.json"), "utf8"));
    const code = Object.values<Json>(files).find(({ source }) => source.packaging === "zip");
    const built = readFileSync(join(output, code?.source.path, "bootstrap"), "utf8");
    assert.match(built, /^lambda build --lambda-dir \S+ --release --arm64 --flatten nightly-report\n$/);
  } finally {
    rmSync(folder, { recursive: true });
  }
});

function text(value: Json): string {
  return value["Fn::Join"][1]
    .map((part: string | Json) =>
      typeof part === "string" ? part : part.Ref?.startsWith("Report") ? "<Report>" : part.Ref?.startsWith("LocksTable") ? "${LockTable}" : `<${part.Ref}>`,
    )
    .join("");
}
