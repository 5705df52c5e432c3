output "table_name" {
  value = aws_dynamodb_table.locks.name
}

output "table_arn" {
  value = aws_dynamodb_table.locks.arn
}

output "policies" {
  description = "By the name of each function: the policy, in JSON, for its role"
  value       = { for name, document in data.aws_iam_policy_document.locks : name => document.json }
}

output "operator_policy" {
  description = "IAM policy, in JSON, of an operator who finds keys and frees them"
  value = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect   = "Allow"
        Action   = ["dynamodb:GetItem", "dynamodb:UpdateItem", "dynamodb:Scan", "dynamodb:DescribeTable", "dynamodb:DescribeTimeToLive"]
        Resource = aws_dynamodb_table.locks.arn
      },
      {
        Effect   = "Allow"
        Action   = "logs:StartQuery"
        Resource = replace(aws_dynamodb_table.locks.arn, "/^([^:]*:[^:]*):dynamodb:([^:]*:[^:]*):.*/", "$1:logs:$2:log-group:/aws/lambda/*")
      },
      {
        Effect   = "Allow"
        Action   = "logs:GetQueryResults"
        Resource = "*"
      },
    ]
  })
}
