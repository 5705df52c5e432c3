# `terraform init && terraform test` needs Terraform 1.7 or later, and no account of AWS.

mock_provider "aws" {
  mock_resource "aws_dynamodb_table" {
    defaults = { arn = "arn:aws:dynamodb:eu-central-1:123456789012:table/locks" }
  }
  mock_data "aws_iam_policy_document" {
    defaults = { json = "{}" }
  }
}

variables {
  functions = {
    nightly-report = { keys = ["nightly-report#*"], hours_without_release = 25 }
    order-api      = { keys = ["order-api", "order-api#*"], read = true, condition_checks = true }
  }
}

run "only_the_table_and_the_policies_by_default" {
  assert {
    condition     = aws_dynamodb_table.locks.deletion_protection_enabled && keys(output.policies) == ["nightly-report", "order-api"]
    error_message = "the table or a policy"
  }
  assert {
    condition     = length(aws_cloudwatch_metric_alarm.locks) + length(aws_cloudwatch_metric_alarm.missing) + length(aws_cloudwatch_metric_alarm.throttled) + length(aws_cloudwatch_dashboard.locks) == 0
    error_message = "an alarm or a dashboard"
  }
  assert {
    condition     = length(aws_dynamodb_table.locks.server_side_encryption) == 0
    error_message = "a key that is not DynamoDB's own"
  }
}

run "a_key_of_your_own_encrypts_the_table" {
  variables {
    kms_key_arn = "arn:aws:kms:eu-central-1:123456789012:key/locks"
  }
  assert {
    condition     = one(aws_dynamodb_table.locks.server_side_encryption).kms_key_arn == var.kms_key_arn && one(aws_dynamodb_table.locks.server_side_encryption).enabled
    error_message = "the key"
  }
}

run "the_policy_of_an_operator_is_that_of_the_runbook" {
  assert {
    condition     = output.operator_policy == jsonencode(jsondecode(file("tests/operator_policy.json")))
    error_message = "the policy: ${output.operator_policy}"
  }
}

run "a_policy_has_the_actions_that_its_function_needs" {
  assert {
    condition     = data.aws_iam_policy_document.locks["nightly-report"].statement[0].actions == toset(["dynamodb:UpdateItem"])
    error_message = "the actions of a function with no option"
  }
  assert {
    condition     = data.aws_iam_policy_document.locks["order-api"].statement[0].actions == toset(["dynamodb:UpdateItem", "dynamodb:GetItem", "dynamodb:ConditionCheckItem"])
    error_message = "the actions of a function with both options"
  }
}

run "each_function_has_its_alarms" {
  variables {
    alarms            = true
    alarm_topic_arn   = "arn:aws:sns:eu-central-1:123456789012:alarms"
    refused_threshold = 3
    runbook           = "https://wiki.example/locks"
  }
  assert {
    condition     = length(aws_cloudwatch_metric_alarm.locks) == 18 && keys(aws_cloudwatch_metric_alarm.missing) == ["nightly-report"]
    error_message = "the number of alarms"
  }
  assert {
    condition     = aws_cloudwatch_metric_alarm.locks["order-api-refused"].dimensions == tomap({ FunctionName = "order-api", reason = "held" }) && aws_cloudwatch_metric_alarm.locks["order-api-refused"].threshold == 3
    error_message = "the alarm on refusals"
  }
  assert {
    condition     = alltrue([for alarm in concat(values(aws_cloudwatch_metric_alarm.locks), values(aws_cloudwatch_metric_alarm.missing), aws_cloudwatch_metric_alarm.throttled) : alarm.alarm_actions == toset([var.alarm_topic_arn]) && strcontains(alarm.alarm_description, " Runbook: https://wiki.example/locks#")])
    error_message = "the topic of an alarm, or its link"
  }
}

run "the_alarms_are_those_of_the_construct" {
  variables {
    functions = {
      FUNCTION = {
        keys                  = ["key"]
        hours_without_release = 25
        queue                 = { name = "QUEUE", max_age_seconds = jsondecode(file("../alarms.json")).construct.waiting.Threshold }
        dead_letter_queue     = "DEAD_LETTERS"
      }
    }
    alarms     = true
    table_name = "TABLE"
  }
  assert {
    condition = jsonencode({
      for alarm in concat(aws_cloudwatch_metric_alarm.throttled, values(aws_cloudwatch_metric_alarm.locks), values(aws_cloudwatch_metric_alarm.missing), values(aws_cloudwatch_metric_alarm.waiting), values(aws_cloudwatch_metric_alarm.dead)) : trimprefix(trimprefix(alarm.alarm_name, "FUNCTION-"), "TABLE-") => {
        AlarmDescription   = alarm.alarm_description
        ComparisonOperator = alarm.comparison_operator
        DatapointsToAlarm  = alarm.datapoints_to_alarm
        Dimensions         = alarm.dimensions
        EvaluationPeriods  = alarm.evaluation_periods
        Expression         = try(one(alarm.metric_query).expression, null)
        MetricName         = alarm.metric_name
        Namespace          = alarm.namespace
        Period             = try(one(alarm.metric_query).period, alarm.period)
        Statistic          = alarm.statistic
        Threshold          = alarm.threshold
        TreatMissingData   = alarm.treat_missing_data
      }
    }) == jsonencode(jsondecode(file("../alarms.json")).construct)
    error_message = "an alarm"
  }
}

run "a_dashboard_searches_the_functions" {
  variables {
    dashboard_name = "locks"
  }
  assert {
    condition     = [for widget in jsondecode(aws_cloudwatch_dashboard.locks[0].dashboard_body).widgets : widget.properties if widget.properties.title == "Time that a lock is held"] == [jsondecode(file("tests/time_held.json"))]
    error_message = "the widget: ${jsonencode([for widget in jsondecode(aws_cloudwatch_dashboard.locks[0].dashboard_body).widgets : widget.properties if widget.properties.title == "Time that a lock is held"])}"
  }
}

run "a_dashboard_shows_the_widget_of_the_holders" {
  variables {
    dashboard_name       = "locks"
    holders_function_arn = "arn:aws:lambda:us-east-1:123456789012:function:holders"
  }
  assert {
    condition     = [for widget in jsondecode(aws_cloudwatch_dashboard.locks[0].dashboard_body).widgets : widget if widget.type == "custom"] == [jsondecode(file("tests/holders.json"))]
    error_message = "the widgets: ${aws_cloudwatch_dashboard.locks[0].dashboard_body}"
  }
}

run "a_policy_of_all_keys_is_refused" {
  command = plan
  variables {
    functions = { nightly-report = { keys = ["*"] } }
  }
  expect_failures = [var.functions]
}

run "a_policy_of_no_key_is_refused" {
  command = plan
  variables {
    functions = { nightly-report = { keys = [] } }
  }
  expect_failures = [var.functions]
}

run "a_dashboard_of_no_function_is_refused" {
  command = plan
  variables {
    functions      = {}
    dashboard_name = "locks"
  }
  expect_failures = [aws_cloudwatch_dashboard.locks]
}
