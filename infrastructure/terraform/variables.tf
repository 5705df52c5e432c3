variable "table_name" {
  type    = string
  default = "locks"
}

variable "deletion_protection" {
  description = "Whether the table is protected from deletion"
  type        = bool
  default     = true
}

variable "kms_key_arn" {
  description = "KMS key that encrypts the table. Without it, DynamoDB's own key does."
  type        = string
  default     = null
}

variable "functions" {
  description = "By the name of each function: the keys of its locks. A key may end in *."
  type = map(object({
    keys = list(string)
    # Locks::get, Locks::release_identity, and the locks of durable functions
    read = optional(bool, false)
    # Lock::condition_check, Lock::condition_checks, and complete_in while LOCK_ENABLED is false
    condition_checks = optional(bool, false)
    # For a function on a schedule: hours without a release after which an alarm is raised, at most 168
    hours_without_release = optional(number)
    # The queue that the function consumes, and how old a message may be: longer than all of its deliveries take, which is
    # visibility timeout × maxReceiveCount
    queue = optional(object({ name = string, max_age_seconds = number }))
    # Name of the queue of the work that was given up
    dead_letter_queue = optional(string)
  }))

  validation {
    condition = alltrue([
      for function in values(var.functions) : length(function.keys) > 0 && alltrue([
        for key in function.keys : can(regex("^[^*?]+[*]?$", key))
      ])
    ])
    error_message = "Each function needs keys, or prefixes of keys that end in *."
  }

  validation {
    condition = alltrue([
      for hours in values(var.functions)[*].hours_without_release :
      hours == null ? true : floor(hours) == hours && hours >= 1 && hours <= 168
    ])
    error_message = "hours_without_release is a whole number from 1 to 168."
  }
}

variable "alarms" {
  description = "Whether to create alarms for errors, locks lost or taken over, too many refusals, failed work, and throttled writes"
  type        = bool
  default     = false
}

variable "alarm_topic_arn" {
  description = "SNS topic that receives each alarm. Without a topic, the alarms only change their state."
  type        = string
  default     = null
}

variable "runbook" {
  description = "Address of the page that the text of each alarm links to. Its headings are those of lock/docs/operate/runbook.md."
  type        = string
  default     = "https://docs.rs/lambda-lock/0.1.0/lambda_lock/docs/operate/runbook/index.html"
}

variable "refused_threshold" {
  description = "Number of refusals of one function in five minutes that does not raise an alarm yet"
  type        = number
  default     = 10
}

variable "dashboard_name" {
  description = "Name of a dashboard of the functions' locks. Without a name, there is none."
  type        = string
  default     = null
}

variable "holders_function_arn" {
  description = "ARN of a function of the template `holders`, whose widget the dashboard shows below the graphs"
  type        = string
  default     = null
}
