use humantime::{format_duration, format_rfc3339_seconds};
use lambda_lock::{Error, ErrorKind, Holder, Locks};
use lambda_runtime::{LambdaEvent, Runtime, service_fn, tracing};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::time::{Duration, SystemTime};

/// How many rows the widget shows at a time.
const PAGE: usize = 50;
/// With this many rows to show, the function reads no further.
const MOST: usize = 1000;
/// After this time, the function reads no further. Less than its timeout, by more than the longest request.
const READ_FOR: Duration = Duration::from_secs(10);

/// The answer to `{"describe": true}`, in Markdown.
const DOCUMENTATION: &str = include_str!("documentation.md");

/// What a dashboard sends: the parameters of the widget or of a button, and the context of the widget.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Event {
    describe: bool,
    free: Option<Free>,
    /// How many rows come before the page.
    skip: usize,
    widget_context: Context,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Context {
    /// The parameters of the widget, also when a button calls.
    params: Option<Parameters>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Parameters {
    starting_with: String,
    keys: Vec<String>,
    free: Option<Value>,
}

#[derive(Deserialize, Serialize)]
struct Free {
    key: String,
    /// As text, because a browser rounds large numbers.
    fence: String,
}

/// A key with its holder, or with one of its permits.
struct Row {
    key: String,
    state: &'static str,
    holder: Option<Holder>,
    /// Why the row of the table cannot be read.
    error: String,
    waiting: u64,
}

impl Row {
    /// The rows of a key: of a semaphore, one for each permit.
    fn all(key: &str, read: Result<Option<Holder>, Error>) -> Result<Vec<Self>, Error> {
        let row = |state, holder| Self { key: key.to_owned(), state, holder, error: String::new(), waiting: 0 };
        let holder = match read {
            Ok(Some(holder)) => holder,
            Ok(None) => return Ok(vec![row("no row", None)]),
            Err(error) if error.kind() == ErrorKind::MalformedRow => {
                return Ok(vec![Self { error: error.to_string(), ..row("malformed", None) }]);
            }
            Err(error) => return Err(error),
        };
        let waiting = holder.waiters();
        let holders = if holder.permits().is_empty() { vec![holder] } else { holder.permits().to_vec() };
        let mut rows: Vec<_> = holders.into_iter().map(|holder| row(state(&holder), Some(holder))).collect();
        rows[0].waiting = waiting;
        Ok(rows)
    }

    fn since(&self) -> Option<SystemTime> {
        self.holder.as_ref().and_then(Holder::since)
    }

    fn html(&self, endpoint: &str, now: SystemTime) -> String {
        let (key, fence) = (text(&self.key), self.holder.as_ref().and_then(Holder::fence));
        let name = self.holder.as_ref().and_then(Holder::name).unwrap_or(&self.error);
        let identity =
            self.holder.as_ref().and_then(Holder::identity).map(|identity| format!(" for {}", text(identity)));
        let fence_line = fence.map(|fence| format!("<br><small>fence {fence}</small>")).unwrap_or_default();
        let who = format!("<b>{key}</b><br>{}{}{fence_line}", text(name), identity.unwrap_or_default());
        let waiting = if self.waiting > 0 { format!("<br>{} waiting", self.waiting) } else { String::new() };
        let since = self.since().map(|since| time("acquired", "acquired", since, now) + "<br>").unwrap_or_default();
        let until = self.holder.as_ref().map(|holder| time("ended", "ends", holder.until(), now)).unwrap_or_default();
        let free = fence.filter(|_| can_be_freed(self.state)).map(|fence| {
            // CloudWatch may take the question for HTML once more.
            let key = text(&self.key.replace(['<', '>', '&'], "·"));
            let effect = match self.state {
                "held" => "The work of its holder goes on: make sure that the holder is dead. If it is the record of a run, the next \
                           retry does its work again.",
                _ => "If it is the record of a run, the next retry does its work again.",
            };
            let question = format!("Free the key {key}, which has the fence {fence}? {effect}");
            let free = Free { key: self.key.clone(), fence: fence.to_string() };
            button("Free", &json!({ "free": free }), endpoint, &question)
        });
        let cell = |style: &str, html: String| format!("<td style=\"vertical-align: top; {style}\">{html}</td>");
        let cells = [
            cell("overflow-wrap: anywhere", who),
            cell(NARROW, format!("{}{waiting}", self.state)),
            cell(NARROW, since + &until),
            cell(NARROW, free.unwrap_or_default()),
        ];
        format!("<tr>{}</tr>\n", cells.concat())
    }
}

/// The style of a column that is as wide as its text, so that the keys have the rest.
const NARROW: &str = "white-space: nowrap";

/// The state, in the words of `lambda-lock list`.
fn state(holder: &Holder) -> &'static str {
    match holder {
        _ if holder.is_completed() => "completed",
        _ if holder.is_current() && holder.is_rate() => "used up",
        _ if holder.is_current() => "held",
        _ if !holder.has_released() => "expired",
        _ => "free",
    }
}

fn can_be_freed(state: &str) -> bool {
    ["held", "expired"].contains(&state)
}

/// A text of others as HTML: markup is text, invisible characters are visible, and the middle of a long text is left out.
fn text(value: &str) -> String {
    const START: usize = 200;
    const END: usize = 100;
    let length = value.chars().count();
    let mut html = String::new();
    for (index, character) in value.chars().enumerate() {
        match character {
            _ if length > START + END && index == START => html.push('…'),
            _ if length > START + END && (START..length - END).contains(&index) => {}
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '&' => html.push_str("&amp;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            '\\' => html.push(character),
            _ => html.extend(character.escape_debug()),
        }
    }
    html
}

/// How long ago or ahead a time is, after the word for the one or the other, above the time itself.
fn time(past: &str, future: &str, at: SystemTime, now: SystemTime) -> String {
    let (before, gap, after) = match now.duration_since(at) {
        Ok(gap) => (past.to_owned(), gap, " ago"),
        Err(later) => (format!("{future} in"), later.duration(), ""),
    };
    let gap = format_duration(Duration::from_secs(gap.as_secs())).to_string();
    let gap = gap.split(' ').take(2).collect::<Vec<_>>().join(" ");
    format!("{before} {gap}{after}<br><small>{}</small>", format_rfc3339_seconds(at))
}

/// A button that calls this function with these parameters, after a question if there is one.
fn button(label: &str, parameters: &Value, endpoint: &str, question: &str) -> String {
    // In JSON, these characters can have escapes that HTML does not know. So it is the same text before and after HTML is read.
    let parameters = parameters.to_string().replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026");
    let confirmation = if question.is_empty() { String::new() } else { format!(" confirmation=\"{question}\"") };
    format!(
        "<a class=\"btn\">{label}</a><cwdb-action action=\"call\" display=\"widget\" endpoint=\"{}\"{confirmation}>\
         {parameters}</cwdb-action>",
        text(endpoint)
    )
}

/// Reads the rows to show. Returns how many rows of the table were read, if that was not the whole table.
async fn read(
    locks: &Locks,
    parameters: &Parameters,
    read_for: Duration,
    rows: &mut Vec<Row>,
) -> Result<Option<u64>, Error> {
    for key in parameters.keys.iter().take(PAGE) {
        rows.extend(Row::all(key, locks.get(key).await)?);
    }
    if !parameters.keys.is_empty() {
        return Ok(None);
    }
    let (start, mut list) = (SystemTime::now(), locks.list());
    while let Some(page) = list.next_page().await? {
        for row in page.into_iter().filter(|row| row.key.starts_with(&parameters.starting_with)) {
            let all = Row::all(&row.key, row.holder.map(Some))?.into_iter();
            rows.extend(all.filter(|row| !["completed", "free"].contains(&row.state)));
        }
        if rows.len() >= MOST || start.elapsed().unwrap_or_default() >= read_for {
            return Ok(Some(list.rows_read()));
        }
    }
    Ok(None)
}

/// Frees the key, if the acquisition with this fence still has it. Returns what has become of it.
async fn free(locks: &Locks, Free { key, fence }: &Free) -> Result<String, Error> {
    let has_fence = |holder: &&Holder| holder.fence().is_some_and(|own| own.to_string() == *fence);
    if let Some(seen) = locks.get(key).await? {
        let seen = seen.permits().iter().find(has_fence).unwrap_or(&seen);
        if has_fence(&seen) && can_be_freed(state(seen)) && locks.force_release(key, seen).await? {
            return Ok(format!("Freed: {}, which had the fence {}.", text(key), text(fence)));
        }
    }
    Ok(format!("Not freed: {}. The fence {} no longer has it.", text(key), text(fence)))
}

fn failed(error: &Error) -> String {
    tracing::error!(?error, "the holders were not read, or the key was not freed");
    text(&error.to_string())
}

/// What the widget shows, in HTML.
async fn answer(locks: &Locks, event: Event, endpoint: &str, read_for: Duration) -> String {
    if event.describe {
        return DOCUMENTATION.to_owned();
    }
    let (parameters, mut notes, mut rows) = (event.widget_context.params.unwrap_or_default(), Vec::new(), Vec::new());
    match event.free {
        // Otherwise, who edits a dashboard could free keys with the permissions of those who look at it.
        Some(_) if parameters.free.is_some() => {
            notes.push("Not freed: only the button of a row frees a key.".to_owned());
        }
        Some(acquisition) => notes.push(free(locks, &acquisition).await.unwrap_or_else(|error| failed(&error))),
        None => {}
    }
    match read(locks, &parameters, read_for, &mut rows).await {
        Ok(None) if rows.is_empty() => notes.push("No key is held or expired.".to_owned()),
        Ok(None) => {}
        Ok(Some(rows)) => notes.push(format!(
            "Only {rows} rows of the table were read. Let the parameter <code>keys</code> name the keys that you look for."
        )),
        Err(error) => notes.push(failed(&error)),
    }
    rows.sort_by_key(|row| (row.state != "held", row.since().is_none(), row.since()));

    let now = SystemTime::now();
    let notes = notes.join("<br>");
    let mut html = if notes.is_empty() { notes } else { format!("<p><b>{notes}</b></p>\n") };
    let page: String = rows.iter().skip(event.skip).take(PAGE).map(|row| row.html(endpoint, now)).collect();
    if !page.is_empty() {
        html += "<table style=\"width: 100%\">\n\
                 <tr><th>Key and holder</th><th>State</th><th>Since and until</th><th></th></tr>\n";
        html += &page;
        html += "</table>\n";
    }
    let to = rows.len().min(event.skip.saturating_add(PAGE));
    if event.skip > 0 {
        html += &button("First", &json!({ "skip": 0 }), endpoint, "");
    }
    if to < rows.len() {
        html += &button("Next", &json!({ "skip": to }), endpoint, "");
    }
    let range = match rows.len() {
        0 => String::new(),
        all => format!("{} to {to} of {all}, ", event.skip.saturating_add(1).min(all)),
    };
    html + &format!("<p><small>{range}read at {}</small></p>\n", format_rfc3339_seconds(now))
}

#[tokio::main]
async fn main() -> Result<(), lambda_runtime::Error> {
    tracing::init_default_subscriber(); // to CloudWatch Logs
    let locks = &Locks::from_env().await?; // the table is LOCK_TABLE_NAME
    let widget = service_fn(async |event: LambdaEvent<Event>| {
        let html = answer(locks, event.payload, &event.context.invoked_function_arn, READ_FOR).await;
        Ok::<_, lambda_runtime::Error>(html)
    });
    Runtime::new(widget).run().await
}

#[cfg(test)]
mod tests {
    use lambda_lock::Lock;
    use lambda_lock::embedded::DynamoDb;
    use std::collections::BTreeSet;
    use tokio::time::sleep;

    use super::*;

    const ARN: &str = "arn:aws:lambda:eu-central-1:123456789012:function:{{ project_name }}";

    async fn locks() -> Locks {
        let locks = Locks::builder(DynamoDb::new().unwrap().client(), "locks").holder("worker 3").build().unwrap();
        locks.create_table().await.unwrap();
        locks
    }

    /// What the widget shows when it is called with this event.
    async fn shown(locks: &Locks, event: Value) -> String {
        answer(locks, serde_json::from_value(event).unwrap(), ARN, READ_FOR).await
    }

    /// The parameters of the buttons, as a browser reads them.
    fn buttons(html: &str) -> Vec<Value> {
        let actions = html.split("<cwdb-action ").skip(1);
        let parameters = actions.map(|action| action.split(['<', '>']).nth(1).unwrap());
        parameters.map(|parameters| serde_json::from_str(parameters).unwrap()).collect()
    }

    fn keys(html: &str) -> Vec<&str> {
        let rows = html.lines().filter(|line| line.starts_with("<tr><td"));
        rows.map(|row| row.split(['<', '>']).nth(6).unwrap()).collect()
    }

    // Nothing waits for real in paused time.
    #[tokio::test(start_paused = true)]
    async fn the_widget_shows_who_holds_a_key_and_which_keys_were_not_released() {
        let locks = locks().await;
        assert!(shown(&locks, json!({})).await.contains("No key is held or expired."));
        locks.acquire("import").lease(Duration::from_secs(1)).await.unwrap().keep();
        sleep(Duration::from_secs(10)).await;
        let execution = locks.acquire("deploy").identity("execution 7").lease(Duration::from_mins(5)).await.unwrap();
        let permit = locks.semaphore("bank", 2).acquire().lease(Duration::from_mins(5)).await.unwrap();
        locks.acquire("report").await.unwrap().release().await.unwrap();

        let html = shown(&locks, json!({})).await;
        assert_eq!(keys(&html), ["deploy", "bank", "import"]);
        let rows: Vec<_> = html.lines().filter(|line| line.starts_with("<tr><td")).collect();
        assert!(rows[0].contains("<br>worker 3 for execution 7<br>") && rows[0].contains(">held</td>"), "{html}");
        let holder = locks.get("deploy").await.unwrap().unwrap();
        for time in [holder.since().unwrap(), holder.until()] {
            assert!(rows[0].contains(&format!("<small>{}</small>", format_rfc3339_seconds(time))), "{html}");
        }
        assert!(rows[2].contains(">expired</td>") && rows[2].contains("the next retry does its work again"), "{html}");
        for (row, fence) in [(rows[0], execution.fence()), (rows[1], permit.fence())] {
            assert!(row.contains(&format!("fence {fence}")) && row.contains("its holder goes on"), "{html}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_widget_shows_how_many_wait() {
        let locks = locks().await;
        let first = locks.acquire("report").lease(Duration::from_mins(5)).await.unwrap();
        let second = tokio::spawn({
            let locks = locks.clone();
            async move { locks.acquire("report").wait(Duration::from_mins(5)).await.unwrap() }
        });
        sleep(Duration::from_secs(5)).await;
        let html = shown(&locks, json!({})).await;
        assert!(html.contains(">held<br>1 waiting</td>"), "{html}");
        first.release().await.unwrap();
        second.await.unwrap().release().await.unwrap();
    }

    #[tokio::test]
    async fn a_button_frees_the_acquisition_of_its_row_and_no_later_one() {
        let locks = locks().await;
        let one = locks.acquire("report").await.unwrap();
        let press = buttons(&shown(&locks, json!({})).await).remove(0);
        let html = shown(&locks, press.clone()).await;
        assert!(html.contains("Freed: report") && html.contains("No key is held"), "{html}");
        assert!(one.release().await.unwrap_err().is_lost());

        let other = locks.acquire("report").await.unwrap();
        let html = shown(&locks, press).await;
        assert!(html.contains("Not freed: report") && keys(&html) == ["report"], "{html}");
        other.release().await.unwrap();
    }

    #[tokio::test]
    async fn a_button_frees_one_permit_of_a_semaphore() {
        let locks = locks().await;
        let bank = locks.semaphore("bank", 2);
        let permits: [Lock; 2] = [bank.acquire().await.unwrap(), bank.acquire().await.unwrap()];
        let press = buttons(&shown(&locks, json!({})).await);
        let fence = permits[1].fence().to_string();
        shown(&locks, press.into_iter().find(|press| press["free"]["fence"] == fence).unwrap()).await;
        permits[0].release().await.unwrap();
        assert!(permits[1].release().await.unwrap_err().is_lost());
    }

    #[tokio::test]
    async fn the_parameters_of_a_widget_free_nothing() {
        let locks = locks().await;
        let lock = locks.acquire("report").await.unwrap();
        let mut press = buttons(&shown(&locks, json!({})).await).remove(0);
        press["widgetContext"] = json!({ "params": press.clone() });
        let html = shown(&locks, press).await;
        assert!(html.contains("only the button of a row") && keys(&html) == ["report"], "{html}");
        lock.release().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_result_of_a_run_is_neither_shown_nor_freed() {
        let locks = locks().await;
        locks.acquire("order 7").lease(Duration::from_secs(1)).await.unwrap().keep();
        sleep(Duration::from_secs(10)).await;
        let unfinished = locks.get("order 7").await.unwrap().unwrap();
        assert!(locks.force_complete("order 7", &unfinished, Duration::from_hours(1), None).await.unwrap());

        let fence = locks.get("order 7").await.unwrap().unwrap().fence().unwrap();
        let html = shown(&locks, json!({ "free": { "key": "order 7", "fence": fence.to_string() } })).await;
        assert!(html.contains("Not freed: order 7") && html.contains("No key is held"), "{html}");
        assert!(locks.get("order 7").await.unwrap().unwrap().is_completed());
    }

    #[tokio::test]
    async fn a_long_list_has_pages() {
        let locks = locks().await;
        for number in 0..PAGE + 10 {
            locks.acquire(format!("report {number}")).await.unwrap().keep();
        }
        let first = shown(&locks, json!({})).await;
        let next = shown(&locks, buttons(&first).pop().unwrap()).await;
        assert!(first.contains("1 to 50 of 60") && next.contains("51 to 60 of 60"), "{first}{next}");
        let all: BTreeSet<_> = keys(&first).into_iter().chain(keys(&next)).collect();
        assert_eq!((keys(&first).len(), all.len()), (PAGE, PAGE + 10));
        assert_eq!(keys(&shown(&locks, buttons(&next).pop().unwrap()).await), keys(&first));

        let html = answer(&locks, Event::default(), ARN, Duration::ZERO).await;
        assert!(html.contains("Only 60 rows of the table were read"), "{html}");
    }

    #[tokio::test]
    async fn the_parameters_of_a_widget_name_the_keys_that_it_shows() {
        let locks = locks().await;
        let _locks = [locks.acquire("report").await.unwrap(), locks.acquire("import").await.unwrap()];
        let with = |parameters: Value| json!({ "widgetContext": { "params": parameters } });
        assert_eq!(keys(&shown(&locks, with(json!({ "startingWith": "rep" }))).await), ["report"]);
        let html = shown(&locks, with(json!({ "keys": ["import", "export"] }))).await;
        assert!(keys(&html) == ["import", "export"] && html.contains(">no row</td>"), "{html}");
    }

    #[tokio::test]
    async fn the_widget_shows_why_it_has_no_rows() {
        let locks = Locks::builder(DynamoDb::new().unwrap().client(), "locks").build().unwrap();
        let html = shown(&locks, json!({})).await;
        assert!(html.contains("table `locks` not found") && !html.contains("No key is held"), "{html}");
    }

    #[tokio::test]
    async fn the_documentation_names_each_parameter() {
        let markdown = shown(&locks().await, json!({ "describe": true })).await;
        assert!(markdown.starts_with("## ") && ["startingWith", "keys"].iter().all(|name| markdown.contains(name)));
    }

    #[tokio::test]
    async fn markup_in_a_key_is_text_and_its_button_frees_it() {
        const KEY: &str = "<img src=x onerror=\"alert('&')\">\u{202e}";
        let locks = locks().await;
        let _lock = locks.acquire(KEY).await.unwrap();
        let html = shown(&locks, json!({})).await;
        assert_eq!(keys(&html), ["&lt;img src=x onerror=&quot;alert(&#39;&amp;&#39;)&quot;&gt;\\u{202e}"]);
        let (_, question) = html.split_once("confirmation=\"").unwrap();
        let question = question.split('"').next().unwrap();
        // Also if it is read as HTML twice.
        assert!(question.contains("·img src=x") && !question.contains("lt;"), "{question}");
        assert!(!html.contains("<img"), "{html}");
        let html = shown(&locks, buttons(&html).remove(0)).await;
        assert!(html.contains("Freed: &lt;img"), "{html}");
    }
}
