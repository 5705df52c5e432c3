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

  # The key is DynamoDB's key in this account's KMS. Its uses are logged.
  server_side_encryption {
    enabled = true
  }

  # Locks and records that are restored from a backup are out of date. An empty table is as good.
  point_in_time_recovery {
    enabled = false
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

locals {
  alarm_actions = var.alarm_topic_arn == null ? [] : [var.alarm_topic_arn]

  alarms = {
    errors = {
      namespace   = "AWS/Lambda"
      metric      = "Errors"
      labels      = {}
      threshold   = 0
      description = "The function failed. It timed out, for example, or was denied access to the table. Read its log. Runbook of lambda-lock: Invocations fail."
    }
    lost = {
      namespace   = "LambdaLock"
      metric      = "lambda_lock_lost"
      labels      = {}
      threshold   = 0
      description = "Work took longer than its lease. Another invocation may have done it in the meantime. Check whether it was done twice. Runbook of lambda-lock: A run was killed or took too long."
    }
    taken-over = {
      namespace   = "LambdaLock"
      metric      = "lambda_lock_taken_over"
      labels      = {}
      threshold   = 0
      description = "An invocation was killed or crashed. Another one took over its lock when its lease had ended. Read the end of the log of the one that died. Runbook of lambda-lock: A run was killed or took too long."
    }
    refused = {
      namespace   = "LambdaLock"
      metric      = "lambda_lock_refused"
      labels      = { reason = "held" }
      threshold   = var.refused_threshold
      description = "The function is invoked before earlier work is done. See who holds the key, and for how long. Runbook of lambda-lock: A key is held."
    }
    in-progress = {
      namespace   = "LambdaLock"
      metric      = "lambda_lock_in_progress_refusals"
      labels      = {}
      threshold   = var.refused_threshold
      description = "Callers retry before their first request is done. See who holds the keys, and for how long. Runbook of lambda-lock: A key is held."
    }
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
  namespace           = each.value.namespace
  metric_name         = each.value.metric
  dimensions          = merge({ FunctionName = each.value.function }, each.value.labels)
  statistic           = "Sum"
  period              = 300
  evaluation_periods  = 1
  comparison_operator = "GreaterThanThreshold"
  threshold           = each.value.threshold
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
  alarm_description   = "No work was done for ${each.value} hours. Check whether the schedule is on, and who holds the key. Runbook of lambda-lock: Work does not happen."
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
