terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.0"
    }
  }
}

resource "aws_dynamodb_table" "locks" {
  name         = var.table_name
  billing_mode = "PAY_PER_REQUEST"
  hash_key     = "id"

  attribute {
    name = "id"
    type = "S"
  }

  ttl {
    attribute_name = "expiration"
    enabled        = true
  }

  # Locks and records that are restored from a backup are out of date. An empty table is as good.
  point_in_time_recovery {
    enabled = false
  }

  dynamic "server_side_encryption" {
    for_each = var.kms_key_arn == null ? [] : [var.kms_key_arn]
    content {
      enabled     = true
      kms_key_arn = server_side_encryption.value
    }
  }

  deletion_protection_enabled = var.deletion_protection
}

# Several keys are one transaction, which needs the same action on each key.
data "aws_iam_policy_document" "locks" {
  for_each = var.functions

  statement {
    effect = "Allow"
    actions = concat(
      ["dynamodb:UpdateItem"],
      each.value.read ? ["dynamodb:GetItem"] : [],
      each.value.condition_checks ? ["dynamodb:ConditionCheckItem"] : [],
    )
    resources = [aws_dynamodb_table.locks.arn]

    condition {
      test     = "ForAllValues:StringLike"
      variable = "dynamodb:LeadingKeys"
      values   = each.value.keys
    }
  }
}

# Each alarm says what happened and what to do first, and links to the heading of the runbook that has the rest.
locals {
  alarm_actions = var.alarm_topic_arn == null ? [] : [var.alarm_topic_arn]

  # Of a metric with a label, an alarm is on one value, or on the sum of all but the values that are routine: a new one is
  # counted. One failure of work or of an item says nothing, because the work is done again: two periods of the last two
  # hours have to have one.
  one_period = { periods = 1, datapoints = null }
  again      = { periods = 24, datapoints = 2 }
  counted    = merge(local.one_period, { namespace = "LambdaLock", label = null, value = null, routine = null, threshold = 0 })

  alarms = {
    errors = merge(local.counted, {
      namespace   = "AWS/Lambda"
      metric      = "Errors"
      description = "The function failed. For example, it timed out, or its role may not use the table. Read its log. Runbook: ${var.runbook}#invocations-fail"
    })
    lock-errors = merge(local.counted, {
      metric      = "lambda_lock_refused"
      label       = "reason"
      routine     = ["held", "used_up", "left_to_holder", "cancelled", "mismatch", "key_missing"]
      description = "Work did not get its lock although nobody held it. For example, the lock table is missing or throttled, or the role of the function may not use it. Read the log for the reason. Runbook: ${var.runbook}#invocations-fail"
    })
    work-errors = merge(local.counted, local.again, {
      metric      = "lambda_lock_work_failed"
      description = "Work fails again and again, although it gets its lock. So the fault is in the handler, or in a service that it calls. Read the log for the errors. Runbook: ${var.runbook}#invocations-fail"
    })
    item-errors = merge(local.counted, local.again, {
      metric      = "lambda_lock_batch_items"
      label       = "outcome"
      routine     = ["done", "duplicate", "in_progress", "used_up", "not_started"]
      description = "Messages or records fail again and again. Read the log for the errors. Fix the cause before all retries are used up. Runbook: ${var.runbook}#invocations-fail"
    })
    http-problems = merge(local.counted, {
      metric      = "lambda_lock_http_problems"
      label       = "problem"
      routine     = ["key-missing", "key-malformed", "key-too-long", "key-reused", "body-unreadable", "body-too-large", "in-progress", "unfinished", "result-not-stored"]
      description = "Requests were answered with a problem that is not the client's mistake. Find the name of the problem in the log, and look it up. Runbook: ${var.runbook}#invocations-fail"
    })
    lost = merge(local.counted, {
      metric      = "lambda_lock_lost"
      description = "Work took longer than its lease, so another invocation may have done it at the same time. Check whether it was done twice. Runbook: ${var.runbook}#a-run-was-killed-or-took-too-long"
    })
    taken-over = merge(local.counted, {
      metric      = "lambda_lock_taken_over"
      description = "An invocation was killed or crashed while it held a lock. Another one took the lock over after the lease had ended. The log line 'taken over' names the log stream of the invocation that died. Read the end of that stream. Runbook: ${var.runbook}#a-run-was-killed-or-took-too-long"
    })
    refused = merge(local.counted, {
      metric      = "lambda_lock_refused"
      label       = "reason"
      value       = "held"
      threshold   = var.refused_threshold
      description = "Invocations did not get their lock, because earlier work still held it. Check who holds the key, and for how long. Runbook: ${var.runbook}#a-key-is-held"
    })
    in-progress = merge(local.counted, {
      metric      = "lambda_lock_in_progress_refusals"
      threshold   = var.refused_threshold
      description = "Callers sent a request again before the first one had finished, so it was rejected. Check who holds the keys, and for how long. Runbook: ${var.runbook}#a-key-is-held"
    })
  }

  watched = merge([
    for name in var.alarms ? keys(var.functions) : [] : {
      for alarm, settings in local.alarms : "${name}-${alarm}" => merge(settings, { function = name })
    }
  ]...)
}

resource "aws_cloudwatch_metric_alarm" "locks" {
  for_each = local.watched

  alarm_name          = each.key
  alarm_description   = each.value.description
  namespace           = each.value.routine == null ? each.value.namespace : null
  metric_name         = each.value.routine == null ? each.value.metric : null
  dimensions          = each.value.routine == null ? merge({ FunctionName = each.value.function }, each.value.label == null ? {} : { (each.value.label) = each.value.value }) : null
  statistic           = each.value.routine == null ? "Sum" : null
  period              = each.value.routine == null ? 300 : null
  evaluation_periods  = each.value.periods
  datapoints_to_alarm = each.value.datapoints
  comparison_operator = "GreaterThanThreshold"
  threshold           = each.value.threshold
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.alarm_actions

  dynamic "metric_query" {
    for_each = each.value.routine == null ? [] : [each.value]
    iterator = of
    content {
      id          = of.value.label
      expression  = "SELECT SUM(${of.value.metric}) FROM SCHEMA(LambdaLock, FunctionName, ${of.value.label}) WHERE FunctionName = '${of.value.function}'${join("", [for value in of.value.routine : " AND ${of.value.label} != '${value}'"])}"
      period      = 300
      return_data = true
    }
  }
}

# Whichever function sends the writes. DynamoDB divides a busy partition, and the functions retry, so one period says nothing.
resource "aws_cloudwatch_metric_alarm" "throttled" {
  count = var.alarms ? 1 : 0

  alarm_name          = "${var.table_name}-throttled"
  alarm_description   = "DynamoDB throttles writes to the lock table again and again, so any function can be refused its lock. Find the key that is written most often. Runbook: ${var.runbook}#invocations-fail"
  namespace           = "AWS/DynamoDB"
  metric_name         = "WriteThrottleEvents"
  dimensions          = { TableName = aws_dynamodb_table.locks.name }
  statistic           = "Sum"
  period              = 300
  evaluation_periods  = local.again.periods
  datapoints_to_alarm = local.again.datapoints
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.alarm_actions
}

# Work that does not happen fails nowhere, and counts nothing.
resource "aws_cloudwatch_metric_alarm" "missing" {
  for_each = {
    for name, function in var.functions : name => function.hours_without_release
    if var.alarms && function.hours_without_release != null
  }

  alarm_name          = "${each.key}-missing"
  alarm_description   = "No work was done for ${each.value} hours. Check whether the schedule is switched on, and whether somebody holds the key. Runbook: ${var.runbook}#work-does-not-happen"
  namespace           = "LambdaLock"
  metric_name         = "lambda_lock_released"
  dimensions          = { FunctionName = each.key }
  statistic           = "Sum"
  period              = 3600
  evaluation_periods  = each.value
  comparison_operator = "LessThanThreshold"
  threshold           = 1
  treat_missing_data  = "breaching"
  alarm_actions       = local.alarm_actions
}

resource "aws_cloudwatch_metric_alarm" "waiting" {
  for_each = {
    for name, function in var.functions : name => function.queue
    if var.alarms && function.queue != null
  }

  alarm_name          = "${each.key}-waiting"
  alarm_description   = "A message has waited in its queue for longer than all of its deliveries take. Check whether the event source mapping of the queue is enabled. Runbook: ${var.runbook}#work-does-not-happen"
  namespace           = "AWS/SQS"
  metric_name         = "ApproximateAgeOfOldestMessage"
  dimensions          = { QueueName = each.value.name }
  statistic           = "Maximum"
  period              = 300
  evaluation_periods  = 1
  comparison_operator = "GreaterThanThreshold"
  threshold           = each.value.max_age_seconds
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.alarm_actions
}

# A message that fails each time can use up its deliveries within one period. The alarm on items needs two, so only this
# alarm tells you.
resource "aws_cloudwatch_metric_alarm" "dead" {
  for_each = {
    for name, function in var.functions : name => function.dead_letter_queue
    if var.alarms && function.dead_letter_queue != null
  }

  alarm_name          = "${each.key}-dead"
  alarm_description   = "Work has failed and all retries are used up. Its messages are in the dead-letter queue. Fix the cause, then send the messages back to the queue. Runbook: ${var.runbook}#work-was-given-up"
  namespace           = "AWS/SQS"
  metric_name         = "ApproximateNumberOfMessagesVisible"
  dimensions          = { QueueName = each.value }
  statistic           = "Maximum"
  period              = 300
  evaluation_periods  = 1
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.alarm_actions
}
