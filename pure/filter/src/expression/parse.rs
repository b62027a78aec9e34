//! The grammar: `and` and `or` of equal precedence, identifiers that inherit qualifiers, and
//! arithmetic.

use std::ops::Range;

use super::arith::{self, Guarded, Value};
use super::block::{Cond, JEQ, JGE, JGT};
use super::lex::{Token, lex};
use super::lower::{Kind, Link, Way};
use super::wlan::Radio;
use super::{Options, Tag};
use crate::{Error, Result};

/// Maximum nesting of arithmetic, signs, and identifiers in parentheses.
const DEPTH_MAX: usize = 100;
/// Maximum nesting of parentheses around primitives: that of libpcap's parser.
const NESTED_MAX: usize = 10_000;
/// Maximum number of changes between `and` and `or`, each of which adds a level of nesting.
const CHANGES_MAX: usize = 500;
/// Maximum number of tests that primitives with many tests may add together, for each instruction
/// that a program may have: the optimizer removes some tests, but not three in four.
const TESTS_PER_INSN: usize = 4;

/// The qualifiers of an identifier, which the next one inherits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Qualifier {
    pub(super) proto: Option<&'static str>,
    pub(super) way: Way,
    /// `host`, `net`, `port`, `portrange`, `proto`; `None` for the default.
    pub(super) kind: Option<&'static str>,
}

/// A complete expression.
pub(super) struct Whole {
    pub(super) cond: Cond,
    /// Whether it tests a VLAN tag that a live socket may keep outside the packet.
    pub(super) has_live_vlan: bool,
    /// The scratch words with the variable parts of offsets.
    pub(super) bases: Range<u32>,
}

pub(super) type Parsed = (Cond, Option<Qualifier>);

pub(super) struct Parser<'a> {
    pub(super) tokens: Vec<(Token, Range<usize>)>,
    pub(super) at: usize,
    depth: usize,
    /// Number of open parentheses around primitives.
    nested: usize,
    changes: usize,
    /// Number of tests of primitives with many tests.
    tests: usize,
    /// The clauses that `and` joins at the top level, with their places, if they are collected.
    clauses: Option<Vec<(Range<usize>, Cond)>>,
    /// For each opening parenthesis, the index of the token after its end.
    behind: Vec<usize>,
    pub(super) link: Link,
    pub(super) options: &'a Options<'a>,
    pub(super) tag: Tag,
    /// Whether the first `vlan` on a live socket has been parsed.
    pub(super) has_live_vlan: bool,
}

pub(super) fn parse(text: &str, options: &Options, tag: Tag) -> Result<Whole> {
    parse_into(text, options, tag, &mut None)
}

/// The clauses that `and` joins at the top level, with their places. All up to the last `or` are
/// one.
pub(super) fn clauses(text: &str, options: &Options) -> Result<Vec<(Range<usize>, Cond)>> {
    let mut clauses = Some(Vec::new());
    parse_into(text, options, Tag::InPacket, &mut clauses)?;
    Ok(clauses.unwrap_or_default())
}

fn parse_into(
    text: &str,
    options: &Options,
    tag: Tag,
    clauses: &mut Option<Vec<(Range<usize>, Cond)>>,
) -> Result<Whole> {
    let link = Link::new(options.link_type).ok_or_else(|| {
        let what = format!("link type {} is not supported", options.link_type);
        Error::unsupported(0..text.len(), what).expected(
            "supported are Ethernet, 802.11, NULL, LOOP, raw IP, Linux cooked, PPP and others",
        )
    })?;
    let link_kind = link.kind;
    let tokens = without_doubled(lex(text, options.extended)?);
    let mut parser = Parser {
        behind: matching(&tokens),
        tokens,
        at: 0,
        depth: 0,
        nested: 0,
        changes: 0,
        tests: 0,
        clauses: clauses.take(),
        link,
        options,
        tag,
        has_live_vlan: false,
    };
    if *parser.peek() == Token::End {
        return Ok(parser.whole(Cond::Const(true)));
    }
    let (mut cond, _) = parser.expression()?;
    *clauses = parser.clauses.take();
    if link_kind == Kind::Wlan(Radio::Ppi) {
        let outermost = Link::new(options.link_type).map(|link| link.ppi());
        cond = outermost.unwrap_or(Cond::Const(false)).and(cond);
    }
    if *parser.peek() != Token::End {
        return Err(parser.unexpected("expected \"and\", \"or\" or the end"));
    }
    Ok(parser.whole(cond))
}

/// An expression in parentheses, or the outermost one, while it is parsed.
struct Level {
    start: usize,
    /// What was parsed so far, and the operator after it.
    left: Option<Cond>,
    is_and: bool,
    qualifier: Option<Qualifier>,
    /// Where the current operand starts, and whether it is negated: for one in parentheses.
    operand_at: usize,
    negate: bool,
}

impl Level {
    fn new(start: usize) -> Level {
        Level {
            start,
            left: None,
            is_and: false,
            qualifier: None,
            operand_at: start,
            negate: false,
        }
    }
}

/// The tokens without parentheses whose only content is in parentheses.
fn without_doubled(tokens: Vec<(Token, Range<usize>)>) -> Vec<(Token, Range<usize>)> {
    let behind = matching(&tokens);
    let is_open = |at: usize| {
        tokens
            .get(at)
            .is_some_and(|(token, _)| *token == Token::Key("("))
    };
    let mut is_kept = vec![true; tokens.len()];
    for at in 0..tokens.len() {
        let end = behind[at].saturating_sub(1);
        let is_closed = tokens[end].0 == Token::Key(")");
        if is_open(at) && is_open(at + 1) && is_closed && behind[at + 1] == end {
            (is_kept[at], is_kept[end]) = (false, false);
        }
    }
    let mut kept = is_kept.into_iter();
    let mut tokens = tokens;
    tokens.retain(|_| kept.next().unwrap_or(true));
    tokens
}

fn matching(tokens: &[(Token, Range<usize>)]) -> Vec<usize> {
    let mut behind = vec![tokens.len() - 1; tokens.len()];
    let mut open = Vec::new();
    for (at, (token, _)) in tokens.iter().enumerate() {
        match token {
            Token::Key("(") => open.push(at),
            Token::Key(")") => {
                if let Some(start) = open.pop() {
                    behind[start] = at + 1;
                }
            }
            _ => {}
        }
    }
    behind
}

impl Parser<'_> {
    fn whole(&self, cond: Cond) -> Whole {
        Whole {
            cond,
            has_live_vlan: self.has_live_vlan,
            bases: self.link.words(),
        }
    }

    pub(super) fn peek(&self) -> &Token {
        &self.tokens[self.at].0
    }

    pub(super) fn place(&self) -> Range<usize> {
        self.tokens[self.at].1.clone()
    }

    pub(super) fn next(&mut self) -> Token {
        let token = self.peek().clone();
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        token
    }

    pub(super) fn take(&mut self, key: &str) -> bool {
        let is = matches!(self.peek(), Token::Key(k) if *k == key);
        if is {
            self.next();
        }
        is
    }

    pub(super) fn need(&mut self, key: &str) -> Result<()> {
        if self.take(key) {
            return Ok(());
        }
        Err(self.unexpected(format!("expected \"{key}\"")))
    }

    pub(super) fn unexpected(&self, expected: impl Into<String>) -> Error {
        let what = match self.peek() {
            Token::End => "unexpected end of the expression".to_owned(),
            Token::Key(key) => format!("unexpected \"{key}\""),
            Token::Number(n) => format!("unexpected number {n}"),
            Token::Dotted(text) | Token::Name(text) => format!("unexpected \"{text}\""),
            Token::Text(_) => "unexpected text".to_owned(),
            Token::Ipv6(_) | Token::Mac(_) | Token::Aid(_) => "unexpected address".to_owned(),
        };
        Error::new(self.place(), what).expected(expected)
    }

    pub(super) fn deeper<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth == DEPTH_MAX {
            let what = "the expression is nested too deeply";
            return Err(Error::unsupported(self.place(), what)
                .expected(format!("at most {DEPTH_MAX} levels")));
        }
        self.depth += 1;
        let result = parse(self);
        self.depth -= 1;
        result
    }

    /// Parses an expression up to its end, or to a parenthesis that it did not open. Parentheses
    /// are kept in a list and not in calls, so they may be nested as deeply as in libpcap.
    fn expression(&mut self) -> Result<Parsed> {
        let mut open: Vec<Level> = Vec::new();
        let mut level = Level::new(self.place().start);
        loop {
            let place = self.place().start;
            let mut negate = false;
            let (mut cond, mut qualifier) = if level.left.is_some() && self.is_identifier(self.at) {
                (self.identifier(level.qualifier)?, level.qualifier)
            } else {
                while self.take("not") {
                    negate = !negate;
                }
                if !self.is_arithmetic() && self.take("(") {
                    self.nest(open.len())?;
                    (level.operand_at, level.negate) = (place, negate);
                    open.push(level);
                    level = Level::new(self.place().start);
                    continue;
                }
                self.term()?
            };
            level.operand_at = place;
            loop {
                if negate {
                    cond = cond.negate();
                }
                self.join(&mut level, cond);
                level.qualifier = qualifier;
                let is_and = match self.peek() {
                    Token::Key("and") => Some(true),
                    Token::Key("or") => Some(false),
                    _ => None,
                };
                let left = level.left.take().unwrap_or(Cond::Const(true));
                if let Some(is_and) = is_and {
                    self.next();
                    self.count_change(&left, is_and)?;
                    (level.left, level.is_and) = (Some(left), is_and);
                    break;
                }
                let Some(outer) = open.pop() else {
                    return Ok((left, qualifier));
                };
                self.need(")")?;
                self.nested -= 1;
                qualifier = level.qualifier;
                (cond, level) = (left, outer);
                negate = level.negate;
            }
        }
    }

    /// Parses a primitive, or an expression in parentheses of its own.
    pub(super) fn operand(&mut self) -> Result<Cond> {
        if self.is_arithmetic() || !self.take("(") {
            return Ok(self.term()?.0);
        }
        self.nest(0)?;
        let (cond, _) = self.expression()?;
        self.need(")")?;
        self.nested -= 1;
        Ok(cond)
    }

    /// Counts an opened parenthesis.
    fn nest(&mut self, open: usize) -> Result<()> {
        if open == NESTED_MAX {
            let what = "the expression is nested too deeply";
            return Err(Error::unsupported(self.place(), what)
                .expected(format!("at most {NESTED_MAX} levels")));
        }
        self.nested += 1;
        Ok(())
    }

    /// Joins an operand to what is on its left.
    fn join(&mut self, level: &mut Level, cond: Cond) {
        let Some(left) = level.left.take() else {
            self.collect(level.start, &cond, false);
            level.left = Some(cond);
            return;
        };
        level.left = Some(if level.is_and {
            self.collect(level.operand_at, &cond, false);
            left.and(cond)
        } else {
            let joined = left.or(cond);
            self.collect(level.start, &joined, true);
            joined
        });
    }

    /// Notes a clause of the top level that ends here, instead of all before it if it is these and
    /// more.
    fn collect(&mut self, start: usize, cond: &Cond, is_all: bool) {
        let end = self.tokens[self.at.saturating_sub(1)].1.end;
        if let Some(clauses) = self.clauses.as_mut().filter(|_| self.nested == 0) {
            let first = clauses.first().map_or(start, |(place, _)| place.start);
            if is_all {
                clauses.clear();
            }
            let start = if is_all { first } else { start };
            clauses.push((start..end, cond.clone()));
        }
    }

    fn count_change(&mut self, cond: &Cond, is_and: bool) -> Result<()> {
        self.changes += usize::from(match cond {
            Cond::All(_) => !is_and,
            Cond::Any(_) => is_and,
            _ => true,
        });
        if self.changes <= CHANGES_MAX {
            return Ok(());
        }
        let what = "\"and\" and \"or\" alternate too often";
        Err(Error::unsupported(self.place(), what).expected(format!("at most {CHANGES_MAX} times")))
    }

    /// Counts the tests of a primitive that has many, before they are created.
    pub(super) fn count_tests(&mut self, count: usize, place: Range<usize>) -> Result<()> {
        self.tests = self.tests.saturating_add(count);
        match self.tests <= TESTS_PER_INSN * self.options.insn_count_max() {
            true => Ok(()),
            false => Err(too_long(place, self.options)),
        }
    }

    /// Whether an identifier, or a parenthesized list of them, starts at a token.
    fn is_identifier(&self, mut at: usize) -> bool {
        let mut open = 0;
        while let Token::Key(key @ ("(" | "not")) = self.tokens[at].0 {
            open += usize::from(key == "(");
            at += 1;
        }
        if self.is_extended(at) {
            return false;
        }
        match self.tokens[at].0 {
            Token::Dotted(_) | Token::Ipv6(_) | Token::Mac(_) | Token::Aid(_) | Token::Name(_) => {
                true
            }
            Token::Number(_) => {
                at += 1;
                while open > 0 && self.tokens[at].0 == Token::Key(")") {
                    (at, open) = (at + 1, open - 1);
                }
                !self.is_operator(at)
            }
            _ => false,
        }
    }

    fn is_operator(&self, at: usize) -> bool {
        let Token::Key(key) = self.tokens[at].0 else {
            return false;
        };
        matches!(key, "=" | "!=" | "<" | ">" | "<=" | ">=") || precedence(key).is_some()
    }

    /// Parses one identifier, or a parenthesized list of them, with the given qualifiers.
    pub(super) fn identifier(&mut self, qualifier: Option<Qualifier>) -> Result<Cond> {
        if self.take("not") {
            return self.deeper(|p| Ok(p.identifier(qualifier)?.negate()));
        }
        if !self.take("(") {
            return self.named(qualifier);
        }
        self.deeper(|p| {
            let mut cond = p.identifier(qualifier)?;
            loop {
                let is_and = match p.peek() {
                    Token::Key("and") => true,
                    Token::Key("or") => false,
                    _ => break,
                };
                p.next();
                p.count_change(&cond, is_and)?;
                let next = p.identifier(qualifier)?;
                cond = if is_and {
                    cond.and(next)
                } else {
                    cond.or(next)
                };
            }
            p.need(")")?;
            Ok(cond)
        })
    }

    /// Refuses a primitive that needs constant offsets, after a header of variable length.
    pub(super) fn need_constant(&self, what: &str, place: Range<usize>) -> Result<()> {
        match self.link.is_variable() {
            false => Ok(()),
            true => Err(Error::new(
                place,
                format!("\"{what}\" cannot follow a header of variable length"),
            )
            .expected("802.11 and packets in tunnels have one")),
        }
    }

    /// Whether a comparison of arithmetic starts here.
    fn is_arithmetic(&self) -> bool {
        match self.peek() {
            Token::Number(_) | Token::Key("len" | "-") => true,
            Token::Key("(") => self.is_operator(self.behind[self.at]),
            Token::Key(_) => self.tokens[self.at + 1].0 == Token::Key("["),
            Token::Name(_) => self.is_payload_load(),
            _ => false,
        }
    }

    /// Parses an operand that is not in parentheses.
    fn term(&mut self) -> Result<Parsed> {
        if self.is_arithmetic() {
            return Ok((self.relation()?, None));
        }
        self.primitive()
    }

    fn relation(&mut self) -> Result<Cond> {
        let a = self.arithmetic(0)?;
        let place = self.place();
        let (jump, reversed) = match self.peek() {
            Token::Key("=") => (JEQ, false),
            Token::Key("!=") => (JEQ, true),
            Token::Key(">") => (JGT, false),
            Token::Key("<=") => (JGT, true),
            Token::Key(">=") => (JGE, false),
            Token::Key("<") => (JGE, true),
            _ => return Err(self.unexpected("expected a comparison, such as \"=\"")),
        };
        self.next();
        let b = self.arithmetic(0)?;
        let test = arith::relate(jump, &a.value, &b.value, self.link.free_words())
            .ok_or_else(|| Error::new(place, "the arithmetic needs too much scratch memory"))?;
        let mut list = a.guard;
        list.extend(b.guard);
        list.extend(a.steps);
        list.extend(b.steps);
        list.push(if reversed { test.negate() } else { test });
        Ok(Cond::All(list))
    }

    /// Parses operators of at least a precedence. `%` and `^` have none in libpcap's grammar:
    /// everything that follows is their operand.
    fn arithmetic(&mut self, least: u8) -> Result<Guarded> {
        let mut a = self.deeper(Self::number_or_load)?;
        while let Token::Key(key) = *self.peek() {
            let Some((op, level)) = precedence(key).filter(|&(_, level)| level >= least) else {
                break;
            };
            let place = self.place();
            self.next();
            let next = if level == LEVEL_NONE { 0 } else { level + 1 };
            let b = self.deeper(|p| p.arithmetic(next))?;
            // libpcap checks only the protocol of the left operand.
            a.steps.extend(b.steps);
            a.value = arith::operate(op, a.value, b.value)
                .ok_or_else(|| Error::new(place, arith::refusal(key)))?;
        }
        Ok(a)
    }

    fn number_or_load(&mut self) -> Result<Guarded> {
        let (guard, steps) = (Vec::new(), Vec::new());
        let plain = |value| Guarded {
            value,
            guard,
            steps,
        };
        match *self.peek() {
            Token::Name(_) if self.is_payload_load() => self.payload_load(),
            Token::Number(n) => {
                self.next();
                Ok(plain(Value::Number(n)))
            }
            Token::Key("len") => {
                self.next();
                Ok(plain(Value::Length))
            }
            Token::Key("-") => {
                self.next();
                let mut inner = self.deeper(|p| p.arithmetic(LEVEL_NONE))?;
                inner.value = match inner.value {
                    Value::Number(n) => Value::Number(n.wrapping_neg()),
                    value => Value::Negate(Box::new(value)),
                };
                Ok(inner)
            }
            Token::Key("(") => {
                self.next();
                let inner = self.deeper(|p| p.arithmetic(0))?;
                self.need(")")?;
                Ok(inner)
            }
            Token::Key(protocol) if self.tokens[self.at + 1].0 == Token::Key("[") => {
                let place = self.place();
                self.next();
                self.next();
                let index = self.deeper(|p| p.arithmetic(0))?;
                let size = self.size()?;
                self.need("]")?;
                self.load(protocol, place, index, size)
            }
            _ => Err(self.unexpected("expected a number, \"len\" or bytes such as \"ip[0]\"")),
        }
    }

    pub(super) fn size(&mut self) -> Result<u16> {
        if !self.take(":") {
            return Ok(0x10);
        }
        let place = self.place();
        match self.next() {
            Token::Number(1) => Ok(0x10),
            Token::Number(2) => Ok(0x08),
            Token::Number(4) => Ok(0x00),
            _ => Err(Error::new(place, "not the size of a load").expected("expected 1, 2 or 4")),
        }
    }
}

/// The error about a program that is too long.
pub(super) fn too_long(place: Range<usize>, options: &Options) -> Error {
    let most = options.insn_count_max();
    let what = format!("the program would have more than {most} instructions");
    Error::new(place, what).expected("shorten the expression, or split it into several")
}

const LEVEL_NONE: u8 = 9;

fn precedence(key: &str) -> Option<(u16, u8)> {
    Some(match key {
        "|" => (arith::OR, 1),
        "&" => (arith::AND, 2),
        "<<" => (arith::LSH, 3),
        ">>" => (arith::RSH, 3),
        "+" => (arith::ADD, 4),
        "-" => (arith::SUB, 4),
        "*" => (arith::MUL, 5),
        "/" => (arith::DIV, 5),
        "%" => (arith::MOD, LEVEL_NONE),
        "^" => (arith::XOR, LEVEL_NONE),
        _ => return None,
    })
}
