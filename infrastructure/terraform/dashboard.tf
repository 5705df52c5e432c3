locals {
  # CloudWatch puts the values into a label. Without them, two statistics of a metric would have the same one.
  function = "$${PROP('Dim.FunctionName')}"

  # What is wrong comes first, then the load, then the times. A search has a metric, the label that it is divided by, a
  # statistic, and a text.
  graphs = [
    {
      title = "Failures"
      metrics = [
        for name in keys(var.functions) :
        ["AWS/Lambda", "Errors", "FunctionName", name, { stat = "Sum", label = "${local.function} errors" }]
      ]
    },
    {
      title    = "Failed work"
      searches = [["lambda_lock_work_failed", "", "Sum", "work failed"]]
    },
    {
      title = "Locks lost, taken over or not released"
      searches = [
        ["lambda_lock_lost", "", "Sum", "lock lost"],
        ["lambda_lock_taken_over", "", "Sum", "lock taken over after a crash"],
        ["lambda_lock_release_failed", ",reason", "Sum", "lock not released: $${PROP('Dim.reason')}"],
      ]
    },
    {
      title    = "Locks refused, by reason"
      searches = [["lambda_lock_refused", ",reason", "Sum", "$${PROP('Dim.reason')}"]]
    },
    {
      title = "Requests throttled by DynamoDB"
      metrics = [
        ["AWS/DynamoDB", "WriteThrottleEvents", "TableName", aws_dynamodb_table.locks.name, { stat = "Sum", label = "writes to the lock table" }],
        ["AWS/DynamoDB", "ReadThrottleEvents", "TableName", aws_dynamodb_table.locks.name, { stat = "Sum", label = "reads of the lock table" }],
      ]
    },
    {
      title = "Locks acquired and released"
      searches = [
        ["lambda_lock_acquired", "", "Sum", "acquired"],
        ["lambda_lock_released", "", "Sum", "released"],
      ]
    },
    {
      title = "Duplicates answered or rejected"
      searches = [
        ["lambda_lock_replays", "", "Sum", "answered with the first result"],
        ["lambda_lock_in_progress_refusals", "", "Sum", "rejected while the first one runs"],
      ]
    },
    {
      title    = "Messages and records, by outcome"
      searches = [["lambda_lock_batch_items", ",outcome", "Sum", "$${PROP('Dim.outcome')}"]]
    },
    {
      title = "Queue length seen by new waiters"
      searches = [
        ["lambda_lock_waiters_ahead", "", "p50", "p50"],
        ["lambda_lock_waiters_ahead", "", "Maximum", "maximum"],
      ]
    },
    {
      title = "Time to acquire a lock"
      unit  = "ms"
      searches = [
        ["lambda_lock_acquire_time", "", "p50", "p50"],
        ["lambda_lock_acquire_time", "", "p99", "p99"],
      ]
    },
    {
      title = "Time that a lock is held"
      unit  = "ms"
      searches = [
        ["lambda_lock_hold_time", "", "p50", "p50"],
        ["lambda_lock_hold_time", "", "p99", "p99"],
      ]
    },
    {
      title = "Time to release a lock"
      unit  = "ms"
      searches = [
        ["lambda_lock_release_time", "", "p50", "p50"],
        ["lambda_lock_release_time", "", "p99", "p99"],
      ]
    },
  ]

  # The quotation marks are those of the search.
  names = join(" OR ", [for name in keys(var.functions) : "\"${name}\""])

  # The widget of the template `holders` is below the graphs.
  holders = [
    for arn in compact([var.holders_function_arn]) : {
      type   = "custom"
      width  = 24
      height = 12
      properties = {
        title    = "Holders of locks"
        endpoint = arn
        updateOn = { refresh = true, resize = false, timeRange = false }
      }
    }
  ]

  widgets = [
    for graph in local.graphs : {
      type   = "metric"
      width  = 8
      height = 6
      properties = {
        title  = graph.title
        region = split(":", aws_dynamodb_table.locks.arn)[3]
        period = 300
        yAxis  = { left = merge({ min = 0, showUnits = false }, try({ label = graph.unit }, {})) }
        metrics = concat(try(graph.metrics, []), [
          for search in try(graph.searches, []) : [{
            expression = "SEARCH('{LambdaLock,FunctionName${search[1]}} FunctionName=(${local.names}) MetricName=\"${search[0]}\"', '${search[2]}')"
            label      = "${local.function} ${search[3]}"
          }]
        ])
      }
    }
  ]
}

resource "aws_cloudwatch_dashboard" "locks" {
  count = var.dashboard_name == null ? 0 : 1

  dashboard_name = var.dashboard_name
  # A function that runs once a day is in the last day.
  dashboard_body = jsonencode({ start = "-P1D", widgets = concat(local.widgets, local.holders) })

  lifecycle {
    precondition {
      condition     = length(var.functions) > 0
      error_message = "A dashboard needs at least one function."
    }
  }
}
