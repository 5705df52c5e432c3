import { basename, resolve } from "node:path";
import { App, Duration, Stack } from "aws-cdk-lib";
import * as events from "aws-cdk-lib/aws-events";
import * as targets from "aws-cdk-lib/aws-events-targets";
import * as lambda from "aws-cdk-lib/aws-lambda";
import { RustFunction } from "cargo-lambda-cdk";
import { LambdaLocks } from "./lambda-locks.ts";

const app = new App();
// A project that `cargo lambda new` made from a template. The name of its folder is that of its package.
const project = resolve(app.node.tryGetContext("project") ?? "nightly-report");
const name = basename(project);

const stack = new Stack(app, name);
const locks = new LambdaLocks(stack, "Locks");

const report = new RustFunction(stack, "Function", {
  functionName: name,
  manifestPath: project,
  architecture: lambda.Architecture.ARM_64,
  timeout: Duration.seconds(58),
  memorySize: 256,
  environment: {
    LOCK_TABLE_NAME: locks.table.tableName,
    LOCK_KEY_PREFIX: `${name}#`,
  },
});
locks.grantLocks(report, `${name}#*`);
// These show the errors and the throttled writes. The rest needs the metrics of lambda-lock, which a project of a template does not export yet.
locks.addAlarms(report);
locks.addTableAlarm();
locks.addDashboard([report]);

// The event of the template `singleton`. The other templates have another source of events.
new events.Rule(stack, "Nightly", {
  schedule: events.Schedule.cron({ hour: "2", minute: "0" }),
  targets: [new targets.LambdaFunction(report)],
});
