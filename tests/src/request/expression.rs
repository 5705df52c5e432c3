//! The expressions of a request. Attributes have their names and values are themselves, so nothing here depends on how the
//! crate calls its placeholders or writes its expressions.

use std::iter::Peekable;
use std::vec::IntoIter;

use serde_json::{Map, Value, json};

/// An attribute of the row, or a field of one that is a map.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Path {
    pub(crate) attribute: String,
    pub(crate) field: Option<String>,
}

impl Path {
    pub(crate) fn attribute(name: &str) -> Self {
        Self { attribute: name.to_owned(), field: None }
    }

    pub(crate) fn field(attribute: &str, field: &str) -> Self {
        Self { attribute: attribute.to_owned(), field: Some(field.to_owned()) }
    }

    /// The name of what this path leads to.
    pub(crate) fn name(&self) -> &str {
        self.field.as_ref().unwrap_or(&self.attribute)
    }

    pub(crate) fn of<'a>(&self, row: &'a Value) -> &'a Value {
        let attribute = &row[&self.attribute];
        self.field.as_ref().map_or(attribute, |field| &attribute["M"][field])
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operand {
    Path(Path),
    Value(Value),
    IfNotExists(Path, Box<Operand>),
    Plus(Box<Operand>, Box<Operand>),
    Minus(Box<Operand>, Box<Operand>),
}

impl Operand {
    pub(crate) fn text(text: &str) -> Self {
        Self::Value(json!({ "S": text }))
    }

    pub(crate) fn number(number: u64) -> Self {
        Self::Value(json!({ "N": number.to_string() }))
    }

    /// The number that this operand stands for in an update of the row, if it is one.
    pub(crate) fn number_in(&self, row: &Value) -> Option<u64> {
        let parse = |value: &Value| value["N"].as_str().and_then(|number| number.parse().ok());
        match self {
            Self::Path(path) => parse(path.of(row)),
            Self::Value(value) => parse(value),
            Self::IfNotExists(path, otherwise) => parse(path.of(row)).or_else(|| otherwise.number_in(row)),
            Self::Plus(left, right) => Some(left.number_in(row)? + right.number_in(row)?),
            Self::Minus(left, right) => Some(left.number_in(row)? - right.number_in(row)?),
        }
    }

    /// The last value in this operand: the one of `if_not_exists`, or what is added.
    pub(crate) fn value(&self) -> Option<&Value> {
        match self {
            Self::Path(_) => None,
            Self::Value(value) => Some(value),
            Self::IfNotExists(_, operand) => operand.value(),
            Self::Plus(left, right) | Self::Minus(left, right) => right.value().or_else(|| left.value()),
        }
    }

    fn each_path(&mut self, f: &mut impl FnMut(&mut Path)) {
        match self {
            Self::Path(path) => f(path),
            Self::Value(_) => {}
            Self::IfNotExists(path, operand) => {
                f(path);
                operand.each_path(f);
            }
            Self::Plus(left, right) | Self::Minus(left, right) => {
                left.each_path(f);
                right.each_path(f);
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Comparison {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Comparison {
    const SYMBOLS: [(&'static str, Self); 6] = [
        ("=", Self::Equal),
        ("<>", Self::Unequal),
        ("<", Self::Less),
        ("<=", Self::LessOrEqual),
        (">", Self::Greater),
        (">=", Self::GreaterOrEqual),
    ];

    pub(super) fn opposite(self) -> Self {
        match self {
            Self::Equal => Self::Unequal,
            Self::Unequal => Self::Equal,
            Self::Less => Self::GreaterOrEqual,
            Self::LessOrEqual => Self::Greater,
            Self::Greater => Self::LessOrEqual,
            Self::GreaterOrEqual => Self::Less,
        }
    }

    fn symbol(self) -> &'static str {
        Self::SYMBOLS.iter().find(|(_, comparison)| *comparison == self).unwrap().0
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Condition {
    /// It always holds.
    True,
    Exists(Path),
    Missing(Path),
    BeginsWith(Path, Operand),
    Compare(Path, Comparison, Operand),
    Between(Path, Operand, Operand),
    Not(Box<Condition>),
    And(Vec<Condition>),
    Or(Vec<Condition>),
}

impl Condition {
    /// The path that this term is about, if no other terms are in it.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Self::Exists(path)
            | Self::Missing(path)
            | Self::BeginsWith(path, _)
            | Self::Compare(path, ..)
            | Self::Between(path, ..) => Some(path),
            Self::True | Self::Not(_) | Self::And(_) | Self::Or(_) => None,
        }
    }

    /// All terms without terms in them.
    pub(crate) fn leaves(&self) -> Vec<&Self> {
        match self {
            Self::Not(term) => term.leaves(),
            Self::And(terms) | Self::Or(terms) => terms.iter().flat_map(Self::leaves).collect(),
            leaf => vec![leaf],
        }
    }

    /// Calls `f` with each term, those within a term first.
    pub(crate) fn each_term(&mut self, f: &mut impl FnMut(&mut Self)) {
        match self {
            Self::Not(term) => term.each_term(f),
            Self::And(terms) | Self::Or(terms) => terms.iter_mut().for_each(|term| term.each_term(f)),
            _ => {}
        }
        f(self);
    }

    pub(super) fn each_path(&mut self, f: &mut impl FnMut(&mut Path)) {
        self.each_term(&mut |term| match term {
            Self::Exists(path) | Self::Missing(path) => f(path),
            Self::BeginsWith(path, operand) | Self::Compare(path, _, operand) => {
                f(path);
                operand.each_path(f);
            }
            Self::Between(path, from, to) => {
                f(path);
                from.each_path(f);
                to.each_path(f);
            }
            Self::True | Self::Not(_) | Self::And(_) | Self::Or(_) => {}
        });
    }

    /// Removes terms that always hold, which DynamoDB cannot express.
    fn simplified(self) -> Self {
        match self {
            Self::And(terms) => {
                let mut terms: Vec<_> = terms.into_iter().map(Self::simplified).collect();
                terms.retain(|term| *term != Self::True);
                match terms.len() {
                    0 => Self::True,
                    1 => terms.remove(0),
                    _ => Self::And(terms),
                }
            }
            Self::Or(terms) => {
                let terms: Vec<_> = terms.into_iter().map(Self::simplified).collect();
                if terms.contains(&Self::True) { Self::True } else { Self::Or(terms) }
            }
            Self::Not(term) => match term.simplified() {
                Self::True => panic!("a condition that never holds"),
                term => Self::Not(Box::new(term)),
            },
            leaf => leaf,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Update {
    pub(crate) set: Vec<(Path, Operand)>,
    pub(crate) remove: Vec<Path>,
    pub(crate) add: Vec<(Path, Operand)>,
}

impl Update {
    pub(super) fn each_path(&mut self, f: &mut impl FnMut(&mut Path)) {
        for (path, operand) in self.set.iter_mut().chain(&mut self.add) {
            f(path);
            operand.each_path(f);
        }
        self.remove.iter_mut().for_each(f);
    }
}

/// Reads the condition of a request, which has its names and values beside it.
pub(crate) fn condition(request: &Value) -> Condition {
    let Some(text) = request["ConditionExpression"].as_str() else { return Condition::True };
    let mut parser = Parser::new(text, request);
    let condition = parser.any_of();
    assert_eq!(parser.tokens.next(), None, "{text}");
    condition
}

/// Reads the update of a request.
pub(crate) fn update(request: &Value) -> Update {
    let Some(text) = request["UpdateExpression"].as_str() else { return Update::default() };
    let mut parser = Parser::new(text, request);
    let mut update = Update::default();
    while let Some(clause) = parser.tokens.next() {
        loop {
            let path = parser.path();
            match clause.as_str() {
                "SET" => {
                    parser.expect("=");
                    update.set.push((path, parser.sum()));
                }
                "REMOVE" => update.remove.push(path),
                "ADD" => update.add.push((path, parser.operand())),
                _ => panic!("an unknown clause: {text}"),
            }
            if !parser.skip(",") {
                break;
            }
        }
    }
    update
}

struct Parser<'a> {
    tokens: Peekable<IntoIter<String>>,
    request: &'a Value,
}

impl<'a> Parser<'a> {
    fn new(text: &str, request: &'a Value) -> Self {
        let mut tokens: Vec<String> = Vec::new();
        let mut rest = text.trim_start();
        while let Some(first) = rest.chars().next() {
            let is_word = |character: char| character.is_alphanumeric() || "#:_".contains(character);
            let length = if is_word(first) {
                rest.find(|character| !is_word(character)).unwrap_or(rest.len())
            } else {
                let symbols = ["<=", ">=", "<>"];
                if symbols.iter().any(|symbol| rest.starts_with(symbol)) { 2 } else { 1 }
            };
            tokens.push(rest[..length].to_owned());
            rest = rest[length..].trim_start();
        }
        Self { tokens: tokens.into_iter().peekable(), request }
    }

    fn skip(&mut self, token: &str) -> bool {
        self.tokens.next_if(|next| next == token).is_some()
    }

    #[track_caller]
    fn expect(&mut self, token: &str) {
        assert!(self.skip(token), "no `{token}` before {:?} in {}", self.tokens.peek(), self.request);
    }

    fn any_of(&mut self) -> Condition {
        let mut terms = vec![self.all_of()];
        while self.skip("OR") {
            terms.push(self.all_of());
        }
        if terms.len() == 1 { terms.remove(0) } else { Condition::Or(terms) }
    }

    fn all_of(&mut self) -> Condition {
        let mut terms = vec![self.term()];
        while self.skip("AND") {
            terms.push(self.term());
        }
        if terms.len() == 1 { terms.remove(0) } else { Condition::And(terms) }
    }

    fn term(&mut self) -> Condition {
        if self.skip("NOT") {
            return Condition::Not(Box::new(self.term()));
        }
        if self.skip("(") {
            let condition = self.any_of();
            self.expect(")");
            return condition;
        }
        if self.skip("attribute_exists") {
            return Condition::Exists(self.argument());
        }
        if self.skip("attribute_not_exists") {
            return Condition::Missing(self.argument());
        }
        if self.skip("begins_with") {
            self.expect("(");
            let path = self.path();
            self.expect(",");
            let start = self.operand();
            self.expect(")");
            return Condition::BeginsWith(path, start);
        }
        let path = self.path();
        if self.skip("BETWEEN") {
            let from = self.operand();
            self.expect("AND");
            return Condition::Between(path, from, self.operand());
        }
        let symbol = self.tokens.next().unwrap_or_default();
        let comparison = Comparison::SYMBOLS.iter().find(|(text, _)| *text == symbol);
        let (_, comparison) = comparison.unwrap_or_else(|| panic!("unknown: `{symbol}` in {}", self.request));
        Condition::Compare(path, *comparison, self.operand())
    }

    fn argument(&mut self) -> Path {
        self.expect("(");
        let path = self.path();
        self.expect(")");
        path
    }

    fn sum(&mut self) -> Operand {
        let mut operand = self.operand();
        loop {
            operand = if self.skip("+") {
                Operand::Plus(Box::new(operand), Box::new(self.operand()))
            } else if self.skip("-") {
                Operand::Minus(Box::new(operand), Box::new(self.operand()))
            } else {
                return operand;
            };
        }
    }

    fn operand(&mut self) -> Operand {
        if self.skip("if_not_exists") {
            self.expect("(");
            let path = self.path();
            self.expect(",");
            let otherwise = self.sum();
            self.expect(")");
            return Operand::IfNotExists(path, Box::new(otherwise));
        }
        if self.tokens.peek().is_some_and(|next| next.starts_with(':')) {
            let placeholder = self.tokens.next().unwrap();
            let value = &self.request["ExpressionAttributeValues"][&placeholder];
            assert!(value.is_object(), "`{placeholder}` has no value in {}", self.request);
            return Operand::Value(value.clone());
        }
        Operand::Path(self.path())
    }

    fn path(&mut self) -> Path {
        let attribute = self.name();
        let field = self.skip(".").then(|| self.name());
        Path { attribute, field }
    }

    fn name(&mut self) -> String {
        let name = self.tokens.next().unwrap_or_default();
        if name.starts_with('#') {
            let name = self.request["ExpressionAttributeNames"][&name].as_str();
            return name.unwrap_or_else(|| panic!("a placeholder has no name: {}", self.request)).to_owned();
        }
        let is_name = name.starts_with(|first: char| first.is_alphabetic() || first == '_');
        assert!(is_name, "`{name}` is no attribute in {}", self.request);
        name
    }
}

/// Writes the expressions of a request, with placeholders for all names and values.
pub(super) fn write(request: &mut Value, condition: &Condition, update: &Update) {
    let mut writer = Writer::default();
    let condition = match condition.clone().simplified() {
        Condition::True => None,
        condition => Some(writer.condition(&condition)),
    };
    let update = writer.update(update);
    let request = request.as_object_mut().unwrap();
    for (name, value) in [
        ("ConditionExpression", condition.map(Value::from)),
        ("UpdateExpression", Some(update.into()).filter(|update| *update != "")),
        ("ExpressionAttributeNames", Some(writer.names.into()).filter(|names| *names != json!({}))),
        ("ExpressionAttributeValues", Some(writer.values.into()).filter(|values| *values != json!({}))),
    ] {
        match value {
            Some(value) => request.insert(name.to_owned(), value),
            None => request.remove(name),
        };
    }
}

#[derive(Default)]
struct Writer {
    names: Map<String, Value>,
    values: Map<String, Value>,
}

impl Writer {
    fn condition(&mut self, condition: &Condition) -> String {
        let mut all = |terms: &[Condition], between: &str| {
            let terms: Vec<_> = terms.iter().map(|term| format!("({})", self.condition(term))).collect();
            terms.join(between)
        };
        match condition {
            Condition::And(terms) => all(terms, " AND "),
            Condition::Or(terms) => all(terms, " OR "),
            Condition::Not(term) => format!("NOT ({})", self.condition(term)),
            Condition::Exists(path) => format!("attribute_exists({})", self.path(path)),
            Condition::Missing(path) => format!("attribute_not_exists({})", self.path(path)),
            Condition::BeginsWith(path, start) => format!("begins_with({}, {})", self.path(path), self.operand(start)),
            Condition::Compare(path, comparison, operand) => {
                format!("{} {} {}", self.path(path), comparison.symbol(), self.operand(operand))
            }
            Condition::Between(path, from, to) => {
                format!("{} BETWEEN {} AND {}", self.path(path), self.operand(from), self.operand(to))
            }
            Condition::True => unreachable!("DynamoDB has no such condition"),
        }
    }

    fn update(&mut self, Update { set, remove, add }: &Update) -> String {
        let set =
            set.iter().map(|(path, operand)| format!("{} = {}", self.path(path), self.operand(operand))).collect();
        let remove = remove.iter().map(|path| self.path(path)).collect();
        let add = add.iter().map(|(path, operand)| format!("{} {}", self.path(path), self.operand(operand))).collect();
        let clauses: [(&str, Vec<String>); 3] = [("SET", set), ("REMOVE", remove), ("ADD", add)];
        let clauses = clauses.iter().filter(|(_, actions)| !actions.is_empty());
        clauses.map(|(clause, actions)| format!("{clause} {}", actions.join(", "))).collect::<Vec<_>>().join(" ")
    }

    fn operand(&mut self, operand: &Operand) -> String {
        match operand {
            Operand::Path(path) => self.path(path),
            Operand::Value(value) => placeholder(&mut self.values, ':', value.clone()),
            Operand::IfNotExists(path, operand) => {
                format!("if_not_exists({}, {})", self.path(path), self.operand(operand))
            }
            Operand::Plus(left, right) => format!("{} + {}", self.operand(left), self.operand(right)),
            Operand::Minus(left, right) => format!("{} - {}", self.operand(left), self.operand(right)),
        }
    }

    fn path(&mut self, path: &Path) -> String {
        let attribute = placeholder(&mut self.names, '#', path.attribute.clone().into());
        match &path.field {
            Some(field) => format!("{attribute}.{}", placeholder(&mut self.names, '#', field.clone().into())),
            None => attribute,
        }
    }
}

fn placeholder(all: &mut Map<String, Value>, first: char, value: Value) -> String {
    if let Some((placeholder, _)) = all.iter().find(|(_, other)| **other == value) {
        return placeholder.clone();
    }
    let placeholder = format!("{first}p{}", all.len());
    all.insert(placeholder.clone(), value);
    placeholder
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Value {
        json!({
            "ConditionExpression": "attribute_not_exists(id) OR (#o <> :me AND NOT #p.#end > :zero \
                AND (begins_with(#o, :me) OR #n BETWEEN :zero AND :one))",
            "UpdateExpression": "SET #o = :me, #n = if_not_exists(#n, :zero) + :one REMOVE #p.#end, id ADD total :one",
            "ExpressionAttributeNames": { "#o": "owner", "#p": "permit:1", "#end": "lease_end", "#n": "fence" },
            "ExpressionAttributeValues": { ":me": { "S": "me" }, ":zero": { "N": "0" }, ":one": { "N": "1" } },
        })
    }

    #[test]
    fn what_is_written_reads_the_same() {
        let request = request();
        let (read, updated) = (condition(&request), update(&request));
        let mut written = json!({ "Key": "kept" });
        write(&mut written, &read, &updated);
        assert_eq!((condition(&written), update(&written)), (read, updated));
        assert_eq!(written["Key"], "kept");
    }

    #[test]
    fn an_expression_is_read_with_names_and_values() {
        let request = request();
        let Condition::Or(terms) = condition(&request) else { panic!() };
        assert_eq!(terms[0], Condition::Missing(Path::attribute("id")));
        let Condition::And(terms) = &terms[1] else { panic!() };
        let end = Condition::Compare(Path::field("permit:1", "lease_end"), Comparison::Greater, Operand::number(0));
        assert_eq!(terms[1], Condition::Not(Box::new(end)));
        let (_, fence) = &update(&request).set[1];
        assert_eq!(fence.number_in(&json!({})), Some(1));
        assert_eq!(fence.number_in(&json!({ "fence": { "N": "7" } })), Some(8));
    }

    #[test]
    fn a_term_that_always_holds_is_left_out() {
        let mut request = request();
        let mut condition = condition(&request);
        condition.each_term(&mut |term| {
            if term.path().is_some_and(|path| path.name() == "owner") {
                *term = Condition::True;
            }
        });
        let update = update(&request);
        write(&mut request, &condition, &update);
        let Condition::Or(terms) = super::condition(&request) else { panic!() };
        assert!(matches!(&terms[1], Condition::Not(_)), "{terms:?}");
    }
}
