import { Arn, ArnFormat, CfnOutput, Duration, Names, RemovalPolicy, Stack, Token } from "aws-cdk-lib";
import * as cloudwatch from "aws-cdk-lib/aws-cloudwatch";
import * as actions from "aws-cdk-lib/aws-cloudwatch-actions";
import * as dynamodb from "aws-cdk-lib/aws-dynamodb";
import * as iam from "aws-cdk-lib/aws-iam";
import type * as kms from "aws-cdk-lib/aws-kms";
import type * as lambda from "aws-cdk-lib/aws-lambda";
import type * as sns from "aws-cdk-lib/aws-sns";
import type * as sqs from "aws-cdk-lib/aws-sqs";
import { Construct } from "constructs";

export interface LambdaLocksProps {
  /** @default - CloudFormation chooses a name */
  readonly tableName?: string;
  /**
   * Whether the table is protected from deletion, and remains when the stack is deleted.
   * @default true
   */
  readonly deletionProtection?: boolean;
  /**
   * The key that encrypts the table.
   * @default - DynamoDB's own key
   */
  readonly encryptionKey?: kms.IKey;
  /**
   * Address of the page that the text of each alarm links to. Its headings are those of lock/docs/operate/runbook.md.
   * @default - the runbook of this version
   */
  readonly runbook?: string;
}

/** What a function does beyond `dynamodb:UpdateItem`, which is enough for locks, permits, several keys, takeovers and runs. */
export interface LockGrants {
  /**
   * Reads who holds a key: `Locks::get`, `Locks::release_identity`, and the locks of durable functions.
   * @default false
   */
  readonly read?: boolean;
  /**
   * Has checks in its own transactions: `Lock::condition_check`, `Lock::condition_checks`, and `complete_in` while
   * `LOCK_ENABLED` is false.
   * @default false
   */
  readonly conditionChecks?: boolean;
}

export interface LockAlarms {
  /** @default - the alarms only change their state */
  readonly topic?: sns.ITopic;
  /**
   * Refusals in five minutes that do not raise an alarm yet.
   * @default 10
   */
  readonly refusedThreshold?: number;
  /**
   * Hours without a release after which an alarm is raised, for a function on a schedule: 1 to 168.
   * @default - no such alarm
   */
  readonly hoursWithoutRelease?: number;
  /**
   * The queue that the function consumes.
   * @default - no alarm on messages that wait
   */
  readonly queue?: WatchedQueue;
  /**
   * The queue of the work that was given up. A message that fails each time can use up its deliveries within five minutes. The
   * alarm on items then stays quiet, because it needs failures in two periods, so only this alarm tells you.
   * @default - no alarm on work that was given up
   */
  readonly deadLetterQueue?: sqs.IQueue;
}

export interface WatchedQueue {
  readonly queue: sqs.IQueue;
  /** How old a message may be: longer than all of its deliveries take, which is visibility timeout × `maxReceiveCount`. */
  readonly maxAge: Duration;
}

/** The table of the locks of lambda-lock, and what its functions may do with their keys. */
export class LambdaLocks extends Construct {
  readonly table: dynamodb.Table;
  /** What an operator needs who finds keys and frees them, for a role of yours. The output `OperatorPolicy` has it, too. */
  readonly operatorPolicy: iam.PolicyDocument;
  private readonly runbook: string;

  constructor(scope: Construct, id: string, props: LambdaLocksProps = {}) {
    super(scope, id);
    const deletionProtection = props.deletionProtection ?? true;
    this.table = new dynamodb.Table(this, "Table", {
      tableName: props.tableName,
      billingMode: dynamodb.BillingMode.PAY_PER_REQUEST,
      partitionKey: { name: "id", type: dynamodb.AttributeType.STRING },
      timeToLiveAttribute: "expiration",
      // Locks and records that are restored from a backup are out of date. An empty table is as good.
      pointInTimeRecoverySpecification: { pointInTimeRecoveryEnabled: false },
      deletionProtection,
      removalPolicy: deletionProtection ? RemovalPolicy.RETAIN : RemovalPolicy.DESTROY,
      encryptionKey: props.encryptionKey,
    });
    this.runbook = props.runbook ?? RUNBOOK;
    const stack = Stack.of(this);
    const logGroups = Arn.format(
      { service: "logs", resource: "log-group", resourceName: "/aws/lambda/*", arnFormat: ArnFormat.COLON_RESOURCE_NAME },
      stack,
    );
    this.operatorPolicy = new iam.PolicyDocument({
      statements: [
        new iam.PolicyStatement({
          actions: [
            "dynamodb:GetItem",
            "dynamodb:UpdateItem",
            "dynamodb:Scan",
            "dynamodb:DescribeTable",
            "dynamodb:DescribeTimeToLive",
          ],
          resources: [this.table.tableArn],
        }),
        new iam.PolicyStatement({ actions: ["logs:StartQuery"], resources: [logGroups] }),
        // CloudWatch has no resource for it.
        new iam.PolicyStatement({ actions: ["logs:GetQueryResults"], resources: ["*"] }),
      ],
    });
    new CfnOutput(this, "OperatorPolicy", { value: stack.toJsonString(this.operatorPolicy) });
  }

  /**
   * Allows locks on these keys and on no others. A key may end in `*`. With `LOCK_KEY_PREFIX=report#` in the function's
   * environment, `report#*` is enough.
   */
  grantLocks(grantee: iam.IGrantable, keys: string | string[], grants: LockGrants = {}): void {
    const leadingKeys = typeof keys === "string" ? [keys] : keys;
    // `ForAllValues` is also true for no value, and a leading wildcard covers the keys of other functions.
    if (leadingKeys.length === 0) {
      throw new Error("grantLocks needs a key or a prefix of keys, such as report#*");
    }
    for (const key of leadingKeys) {
      if (/^\*?$|\?|\*./.test(key)) {
        throw new Error(`grantLocks needs a key, or a prefix of keys that ends in *, and not "${key}"`);
      }
    }
    grantee.grantPrincipal.addToPrincipalPolicy(
      new iam.PolicyStatement({
        actions: [
          // Several keys are one transaction, which needs the same action on each key.
          "dynamodb:UpdateItem",
          ...(grants.read ? ["dynamodb:GetItem"] : []),
          ...(grants.conditionChecks ? ["dynamodb:ConditionCheckItem"] : []),
        ],
        resources: [this.table.tableArn],
        conditions: { "ForAllValues:StringLike": { "dynamodb:LeadingKeys": leadingKeys } },
      }),
    );
  }

  /**
   * Watches a function: errors, locks that were lost, taken over or refused, work and items of batches that fail, problems of
   * HTTP requests, and its queues if you name them. All but the errors and the queues need the metrics of lambda-lock, which
   * the function exports to the namespace `LambdaLock`. CloudWatch bills a query for each metric that it finds.
   */
  addAlarms(fn: lambda.IFunction, alarms: LockAlarms = {}): cloudwatch.Alarm[] {
    const hours = alarms.hoursWithoutRelease;
    if (hours !== undefined && !Token.isUnresolved(hours) && !(Number.isInteger(hours) && hours >= 1 && hours <= 168)) {
      throw new Error(`hoursWithoutRelease is ${hours}, not a whole number of hours from 1 to 168`);
    }
    const refused = alarms.refusedThreshold ?? 10;
    const added = [
      this.alarm(Names.uniqueId(fn), "Errors", {
        metric: fn.metricErrors({ period: FIVE_MINUTES, statistic: "Sum" }),
        alarmDescription: this.description(
          "The function failed. For example, it timed out, or its role may not use the table. Read its log.",
          "invocations-fail",
        ),
      }),
      this.alarm(Names.uniqueId(fn), "LockErrors", {
        // The others are routine, or a mistake of the sender.
        metric: countOther(fn, "lambda_lock_refused", "reason", [
          "held",
          "used_up",
          "left_to_holder",
          "cancelled",
          "mismatch",
          "key_missing",
        ]),
        alarmDescription: this.description(
          "Work did not get its lock although nobody held it. For example, the lock table is missing or throttled, or the role of the function may not use it. Read the log for the reason.",
          "invocations-fail",
        ),
      }),
      this.alarm(Names.uniqueId(fn), "WorkErrors", {
        metric: count(fn, "lambda_lock_work_failed"),
        alarmDescription: this.description(
          "Work fails again and again, although it gets its lock. So the fault is in the handler, or in a service that it calls. Read the log for the errors.",
          "invocations-fail",
        ),
        ...AGAIN,
      }),
      this.alarm(Names.uniqueId(fn), "ItemErrors", {
        metric: countOther(fn, "lambda_lock_batch_items", "outcome", [
          "done",
          "duplicate",
          "in_progress",
          "used_up",
          "not_started",
        ]),
        alarmDescription: this.description(
          "Messages or records fail again and again. Read the log for the errors. Fix the cause before all retries are used up.",
          "invocations-fail",
        ),
        ...AGAIN,
      }),
      this.alarm(Names.uniqueId(fn), "HttpProblems", {
        // The others are mistakes of a client, or routine.
        metric: countOther(fn, "lambda_lock_http_problems", "problem", [
          "key-missing",
          "key-malformed",
          "key-too-long",
          "key-reused",
          "body-unreadable",
          "body-too-large",
          "in-progress",
          "unfinished",
          "result-not-stored",
        ]),
        alarmDescription: this.description(
          "Requests were answered with a problem that is not the client's mistake. Find the name of the problem in the log, and look it up.",
          "invocations-fail",
        ),
      }),
      this.alarm(Names.uniqueId(fn), "Lost", {
        metric: count(fn, "lambda_lock_lost"),
        alarmDescription: this.description(
          "Work took longer than its lease, so another invocation may have done it at the same time. Check whether it was done twice.",
          "a-run-was-killed-or-took-too-long",
        ),
      }),
      this.alarm(Names.uniqueId(fn), "TakenOver", {
        metric: count(fn, "lambda_lock_taken_over"),
        alarmDescription: this.description(
          "An invocation was killed or crashed while it held a lock. Another one took the lock over after the lease had ended. The log line 'taken over' names the log stream of the invocation that died. Read the end of that stream.",
          "a-run-was-killed-or-took-too-long",
        ),
      }),
      this.alarm(Names.uniqueId(fn), "Refused", {
        metric: count(fn, "lambda_lock_refused", { reason: "held" }),
        alarmDescription: this.description(
          "Invocations did not get their lock, because earlier work still held it. Check who holds the key, and for how long.",
          "a-key-is-held",
        ),
        threshold: refused,
      }),
      this.alarm(Names.uniqueId(fn), "InProgress", {
        metric: count(fn, "lambda_lock_in_progress_refusals"),
        alarmDescription: this.description(
          "Callers sent a request again before the first one had finished, so it was rejected. Check who holds the keys, and for how long.",
          "a-key-is-held",
        ),
        threshold: refused,
      }),
    ];
    if (hours !== undefined) {
      added.push(
        this.alarm(Names.uniqueId(fn), "Missing", {
          metric: count(fn, "lambda_lock_released").with({ period: Duration.hours(1) }),
          alarmDescription: this.description(
            `No work was done for ${hours} hours. Check whether the schedule is switched on, and whether somebody holds the key.`,
            "work-does-not-happen",
          ),
          evaluationPeriods: hours,
          comparisonOperator: cloudwatch.ComparisonOperator.LESS_THAN_THRESHOLD,
          threshold: 1,
          // Work that does not happen counts nothing.
          treatMissingData: cloudwatch.TreatMissingData.BREACHING,
        }),
      );
    }
    if (alarms.queue) {
      const { queue, maxAge } = alarms.queue;
      added.push(
        this.alarm(Names.uniqueId(fn), "Waiting", {
          metric: queue.metricApproximateAgeOfOldestMessage({ period: FIVE_MINUTES, statistic: "Maximum" }),
          alarmDescription: this.description(
            "A message has waited in its queue for longer than all of its deliveries take. Check whether the event source mapping of the queue is enabled.",
            "work-does-not-happen",
          ),
          threshold: maxAge.toSeconds(),
        }),
      );
    }
    if (alarms.deadLetterQueue) {
      added.push(
        this.alarm(Names.uniqueId(fn), "Dead", {
          metric: alarms.deadLetterQueue.metricApproximateNumberOfMessagesVisible({
            period: FIVE_MINUTES,
            statistic: "Maximum",
          }),
          alarmDescription: this.description(
            "Work has failed and all retries are used up. Its messages are in the dead-letter queue. Fix the cause, then send the messages back to the queue.",
            "work-was-given-up",
          ),
        }),
      );
    }
    if (alarms.topic) {
      const action = new actions.SnsAction(alarms.topic);
      added.forEach((alarm) => alarm.addAlarmAction(action));
    }
    return added;
  }

  /** Watches the table: whether DynamoDB throttles writes, whichever function sends them. It needs no metrics of lambda-lock. */
  addTableAlarm(topic?: sns.ITopic): cloudwatch.Alarm {
    const alarm = this.alarm("", "Throttled", {
      metric: this.throttled("WriteThrottleEvents"),
      alarmDescription: this.description(
        "DynamoDB throttles writes to the lock table again and again, so any function can be refused its lock. Find the key that is written most often.",
        "invocations-fail",
      ),
      // DynamoDB divides a busy partition, and the functions retry.
      ...AGAIN,
    });
    if (topic) {
      alarm.addAlarmAction(new actions.SnsAction(topic));
    }
    return alarm;
  }

  /**
   * A dashboard of the locks of these functions. It needs the metrics, as `addAlarms` does. `holders` is a function of the
   * template `holders`, a widget that shows who holds which keys, and frees a key.
   */
  addDashboard(functions: lambda.IFunction[], dashboardName?: string, holders?: lambda.IFunction): cloudwatch.Dashboard {
    if (functions.length === 0) {
      throw new Error("addDashboard needs at least one function");
    }
    const names = functions.map((fn) => `"${fn.functionName}"`).join(" OR ");
    // CloudWatch puts the values into a label. Without them, two statistics of a metric would have the same one.
    const search = (dimension: string) => (metric: string, statistic: string, label: string) =>
      new cloudwatch.MathExpression({
        expression: `SEARCH('{LambdaLock,FunctionName${dimension}} FunctionName=(${names}) MetricName="${metric}"', '${statistic}')`,
        label: `${FUNCTION} ${label}`,
        period: FIVE_MINUTES,
      });
    const each = search("");
    const byReason = search(",reason");
    const byOutcome = search(",outcome");
    const times = (metric: string) => [each(metric, "p50", "p50"), each(metric, "p99", "p99")];
    // What is wrong comes first, then the load, then the times.
    const widgets: [string, cloudwatch.IMetric[], string?][] = [
      [
        "Failures",
        functions.map((fn) =>
          fn.metricErrors({ period: FIVE_MINUTES, statistic: "Sum", label: `${FUNCTION} errors` }),
        ),
      ],
      ["Failed work", [each("lambda_lock_work_failed", "Sum", "work failed")]],
      [
        "Locks lost, taken over or not released",
        [
          each("lambda_lock_lost", "Sum", "lock lost"),
          each("lambda_lock_taken_over", "Sum", "lock taken over after a crash"),
          byReason("lambda_lock_release_failed", "Sum", "lock not released: ${PROP('Dim.reason')}"),
        ],
      ],
      ["Locks refused, by reason", [byReason("lambda_lock_refused", "Sum", "${PROP('Dim.reason')}")]],
      [
        "Requests throttled by DynamoDB",
        [
          this.throttled("WriteThrottleEvents", "writes to the lock table"),
          this.throttled("ReadThrottleEvents", "reads of the lock table"),
        ],
      ],
      [
        "Locks acquired and released",
        [each("lambda_lock_acquired", "Sum", "acquired"), each("lambda_lock_released", "Sum", "released")],
      ],
      [
        "Duplicates answered or rejected",
        [
          each("lambda_lock_replays", "Sum", "answered with the first result"),
          each("lambda_lock_in_progress_refusals", "Sum", "rejected while the first one runs"),
        ],
      ],
      [
        "Messages and records, by outcome",
        [byOutcome("lambda_lock_batch_items", "Sum", "${PROP('Dim.outcome')}")],
      ],
      [
        "Queue length seen by new waiters",
        [
          each("lambda_lock_waiters_ahead", "p50", "p50"),
          each("lambda_lock_waiters_ahead", "Maximum", "maximum"),
        ],
      ],
      ["Time to acquire a lock", times("lambda_lock_acquire_time"), "ms"],
      ["Time that a lock is held", times("lambda_lock_hold_time"), "ms"],
      ["Time to release a lock", times("lambda_lock_release_time"), "ms"],
    ];
    const dashboard = new cloudwatch.Dashboard(this, "Dashboard", {
      dashboardName,
      // A function that runs once a day is in it.
      defaultInterval: Duration.days(1),
    });
    dashboard.addWidgets(
      ...widgets.map(
        ([title, left, label]) =>
          new cloudwatch.GraphWidget({
            title,
            left,
            leftYAxis: { min: 0, showUnits: false, label },
            width: 8,
            height: 6,
          }),
      ),
    );
    if (holders) {
      dashboard.addWidgets(
        new cloudwatch.CustomWidget({
          title: "Holders of locks",
          functionArn: holders.functionArn,
          updateOnResize: false,
          updateOnTimeRangeChange: false,
          width: 24,
          height: 12,
        }),
      );
    }
    return dashboard;
  }

  private throttled(metricName: string, label?: string): cloudwatch.Metric {
    return new cloudwatch.Metric({
      namespace: "AWS/DynamoDB",
      metricName,
      dimensionsMap: { TableName: this.table.tableName },
      statistic: "Sum",
      period: FIVE_MINUTES,
      label,
    });
  }

  /** What happened and what to do first, with a link to the heading of the runbook that has the rest. */
  private description(text: string, heading: string): string {
    return `${text} Runbook: ${this.runbook}#${heading}`;
  }

  private alarm(
    of: string,
    name: string,
    props: Partial<cloudwatch.AlarmProps> & { metric: cloudwatch.IMetric },
  ): cloudwatch.Alarm {
    return new cloudwatch.Alarm(this, `${of}${name}`, {
      evaluationPeriods: 1,
      comparisonOperator: cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD,
      threshold: 0,
      treatMissingData: cloudwatch.TreatMissingData.NOT_BREACHING,
      ...props,
    });
  }
}

const FIVE_MINUTES = Duration.minutes(5);

/** One period says nothing, because work that failed is done again. So two periods of the last two hours have to have a failure. */
const AGAIN = { evaluationPeriods: 24, datapointsToAlarm: 2 };

const RUNBOOK = "https://docs.rs/lambda-lock/0.1.0/lambda_lock/docs/operate/runbook/index.html";

/** In a label: the name of the function that a metric is of. */
const FUNCTION = "${PROP('Dim.FunctionName')}";

/** The sum of a metric over the values of its label, except these: a new one is counted. */
function countOther(fn: lambda.IFunction, metric: string, label: string, values: string[]): cloudwatch.MathExpression {
  const others = values.map((value) => ` AND ${label} != '${value}'`).join("");
  return new cloudwatch.MathExpression({
    expression: `SELECT SUM(${metric}) FROM SCHEMA(LambdaLock, FunctionName, ${label}) WHERE FunctionName = '${fn.functionName}'${others}`,
    period: FIVE_MINUTES,
  });
}

/** A metric of lambda-lock, with all of its dimensions: an alarm finds it under no fewer. */
function count(fn: lambda.IFunction, metricName: string, labels: Record<string, string> = {}): cloudwatch.Metric {
  return new cloudwatch.Metric({
    namespace: "LambdaLock",
    metricName,
    dimensionsMap: { FunctionName: fn.functionName, ...labels },
    statistic: "Sum",
    period: FIVE_MINUTES,
  });
}
