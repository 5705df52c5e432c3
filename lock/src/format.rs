//! How keys are hashed and results are stored: our own way, or that of Powertools for AWS Lambda.

use aws_sdk_dynamodb::types::AttributeValue;
use serde_json::Value;

/// Interim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordFormat {
    /// Interim.
    #[default]
    Plain,
}

impl RecordFormat {
    pub(crate) fn key(self, key: &Value) -> Result<String, String> {
        key.as_str().map(str::to_owned).ok_or_else(|| "the key is not a string".to_owned())
    }
    pub(crate) fn digest(self, payload: &Value) -> Result<String, String> {
        Ok(payload.to_string())
    }
    pub(crate) fn store(self, result: &Value) -> Result<AttributeValue, String> {
        Ok(AttributeValue::S(result.to_string()))
    }
    pub(crate) fn load(self, data: Option<&AttributeValue>) -> Result<Value, String> {
        match data {
            None => Ok(Value::Null),
            Some(data) => {
                serde_json::from_str(data.as_s().map_err(|_| "not a string".to_owned())?).map_err(|e| e.to_string())
            }
        }
    }
}
