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
