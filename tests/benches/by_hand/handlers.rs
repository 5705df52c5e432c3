use aws_sdk_dynamodb::{Client, error::SdkError, types::AttributeValue};
use lambda_lock::{HandlerError, Idempotency};
use lambda_runtime::Error;

/// By hand, marked before the work.
pub(crate) async fn marked_before(
    marks: &Client,
    id: &str,
    work: impl Future<Output = Result<(), Error>>,
) -> Result<(), Error> {
    let mark = marks
        .put_item()
        .table_name("marks")
        .item("id", AttributeValue::S(id.to_owned()))
        .condition_expression("attribute_not_exists(id)");
    match mark.send().await.map_err(SdkError::into_service_error) {
        Ok(_) => work.await,
        Err(error) if error.is_conditional_check_failed_exception() => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// By hand, marked after the work.
pub(crate) async fn marked_after(
    marks: &Client,
    id: &str,
    work: impl Future<Output = Result<(), Error>>,
) -> Result<(), Error> {
    let id = AttributeValue::S(id.to_owned());
    let mark = marks.get_item().table_name("marks").key("id", id.clone());
    if mark.consistent_read(true).send().await?.item.is_some() {
        return Ok(());
    }
    work.await?;
    marks.put_item().table_name("marks").item("id", id).send().await?;
    Ok(())
}

/// With lambda-lock.
pub(crate) async fn run_once(
    events: &Idempotency<String, (), Error>,
    id: &str,
    work: impl Future<Output = Result<(), Error>>,
) -> Result<(), HandlerError<Error>> {
    events.run(&id.to_owned(), async |_| work.await).await
}
