//! Isolating a queue of a model of a card, whose driver may refuse any request.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;

use sys::ethtool::{Fields, InstalledRule, IpFields, Masked, NtupleFeature};

use super::*;

/// A change of a model's state.
type Change<'a> = &'a dyn Fn(&mut State);

/// State of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    rings: u32,
    table: Vec<u32>,
    ntuple: Option<NtupleFeature>,
    rules: Option<RuleTable>,
}

/// What a driver does when a rule is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deletion {
    /// It deletes the rule.
    Done,
    /// Another program deletes it before.
    Late,
    /// It finds no such rule, and keeps it.
    Failed,
}

/// A model of a card and its driver.
struct Model {
    deletion: Cell<Deletion>,
    /// Whether it stores other tables than those that it is given.
    alters_tables: bool,
    /// Whether it reports rules with other values than those that it is given.
    alters_rules: bool,
    state: RefCell<State>,
    /// Number of changes after which each further change is refused.
    refuses_after: Cell<usize>,
    /// Whether changes are refused once only.
    recovers: bool,
}

impl Model {
    fn new(rings: u32, entries: u32) -> Model {
        Model {
            state: RefCell::new(State {
                rings,
                table: (0..entries).map(|i| i % rings).collect(),
                ntuple: Some(NtupleFeature {
                    is_on: false,
                    is_changeable: true,
                }),
                rules: Some(RuleTable {
                    rules: Vec::new(),
                    size: 64,
                    chooses_location: false,
                }),
            }),
            refuses_after: Cell::new(usize::MAX),
            recovers: true,
            deletion: Cell::new(Deletion::Done),
            alters_tables: false,
            alters_rules: false,
        }
    }

    fn state(&self) -> State {
        self.state.borrow().clone()
    }

    fn change(&self, what: &str) -> Result<()> {
        let left = self.refuses_after.get();
        if left != 0 {
            self.refuses_after.set(left - 1);
            return Ok(());
        }
        if self.recovers {
            self.refuses_after.set(usize::MAX);
        }
        Err(Error::new(
            ErrorKind::Unsupported,
            what,
            "the model refuses",
        ))
    }

    /// Adds a rule as another program does.
    fn add_rule(&self, location: u32, port: u16, queue: Option<u32>, context: Option<u32>) {
        let mut state = self.state.borrow_mut();
        state.rules.as_mut().unwrap().rules.push(InstalledRule {
            location,
            spec: rule(port).spec(),
            queue,
            context,
        });
    }
}

impl Device for Model {
    fn name(&self) -> String {
        "eth0".into()
    }

    fn key(&self) -> String {
        "1-2".into()
    }

    fn card(&self) -> String {
        "model".into()
    }

    fn ring_count(&self) -> Result<Option<u32>> {
        Ok(Some(self.state.borrow().rings).filter(|&rings| rings != 0))
    }

    fn table(&self) -> Result<Option<Vec<u32>>> {
        let table = self.state.borrow().table.clone();
        Ok(Some(table).filter(|table| !table.is_empty()))
    }

    fn context_table(&self, context: u32) -> Result<Option<Vec<u32>>> {
        Ok(Some(vec![context]))
    }

    fn set_table(&self, table: &[u32]) -> Result<()> {
        self.change("set the table")?;
        let mut state = self.state.borrow_mut();
        let rings = state.rings;
        let default: Vec<_> = (0..state.table.len() as u32).map(|i| i % rings).collect();
        state.table = match table {
            [] => default,
            table if self.alters_tables && table != default => vec![0; table.len()],
            table => table.to_vec(),
        };
        Ok(())
    }

    fn ntuple(&self) -> Result<Option<NtupleFeature>> {
        Ok(self.state.borrow().ntuple)
    }

    fn set_ntuple(&self, on: bool) -> Result<()> {
        self.change("switch ntuple")?;
        self.state.borrow_mut().ntuple.as_mut().unwrap().is_on = on;
        Ok(())
    }

    fn rules(&self) -> Result<Option<RuleTable>> {
        Ok(self.state.borrow().rules.clone())
    }

    fn insert(&self, rule: &Rule, queue: u32, location: Option<u32>) -> Result<u32> {
        self.change("add a rule")?;
        let mut state = self.state.borrow_mut();
        assert!(state.ntuple.is_none_or(|feature| feature.is_on));
        let rules = &mut state.rules.as_mut().unwrap().rules;
        let taken = |at: &u32| rules.iter().any(|rule| rule.location == *at);
        let location = location.unwrap_or_else(|| (0..).find(|at| !taken(at)).unwrap());
        assert!(!taken(&location), "{location} is in use");
        rules.push(InstalledRule {
            location,
            spec: match self.alters_rules {
                true => self::rule(9).spec(),
                false => rule.spec(),
            },
            queue: Some(queue),
            context: None,
        });
        Ok(location)
    }

    fn delete(&self, location: u32) -> Result<()> {
        self.change("delete a rule")?;
        let none = Error::new(ErrorKind::NotFound, "delete a rule", "there is none");
        if self.deletion.get() == Deletion::Failed {
            return Err(none);
        }
        let mut state = self.state.borrow_mut();
        let rules = &mut state.rules.as_mut().unwrap().rules;
        let at = rules.iter().position(|rule| rule.location == location);
        rules.remove(at.expect("no such rule"));
        match self.deletion.get() {
            Deletion::Late => Err(none),
            _ => Ok(()),
        }
    }
}

fn rule(port: u16) -> Rule {
    Rule {
        destination: Masked::default(),
        vlan_type: None,
        vlan_tci: Masked::default(),
        fields: Fields::Ip(IpFields {
            protocol: Some(17),
            destination_port: Masked {
                value: port,
                mask: u16::MAX,
            },
            ..IpFields::default()
        }),
    }
}

/// A store in a directory that is deleted on drop.
struct Folder(Store, PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let pid = std::process::id();
        let dir = std::env::temp_dir().join(format!("barewire-isolate-{pid}-{name}"));
        let _ = std::fs::remove_dir_all(&dir);
        Folder(Store::in_folder(&dir), dir)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.1);
    }
}

#[test]
fn a_queue_is_isolated_and_everything_is_restored() {
    let folder = Folder::new("whole");
    let (store, model) = (&folder.0, Model::new(4, 8));
    model.add_rule(63, 22, Some(0), None);
    let before = model.state();
    let plan = plan(&model, store, 3, &[rule(53), rule(54)]).unwrap();
    let lines: Vec<_> = plan.lines().map(|line| line.to_string()).collect();
    assert_eq!(
        lines,
        [
            "ethtool -K eth0 ntuple on",
            "ethtool -N eth0 flow-type udp4 dst-port 53 action 3 loc 62",
            "ethtool -N eth0 flow-type udp4 dst-port 54 action 3 loc 61",
            "RSS indirection table of eth0: 2 of 8 entries from queue 3 to queues 0, 1",
        ]
    );
    assert_eq!(plan.notes.len(), 1, "the other rule");
    assert_eq!(model.state(), before, "a plan changes nothing");
    let owned = plan.carry_out(&model, store).unwrap();
    let state = model.state();
    assert_eq!(state.table, [0, 1, 2, 0, 0, 1, 2, 1]);
    assert!(state.ntuple.unwrap().is_on && state.rules.unwrap().rules.len() == 3);
    // While it is in use, and after that.
    for owned in [Some(owned), None] {
        let error = super::plan(&model, store, 2, &[]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        let refused = undo(&model, store);
        if owned.is_some() {
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::Busy);
        }
    }
    // The other rule needs ntuple filters.
    let mut now = model.state();
    assert!(now.ntuple.unwrap().is_on);
    now.ntuple = before.ntuple;
    assert_eq!(now, before);
    assert_eq!(undo(&model, store).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn each_refused_step_undoes_those_before_it() {
    let folder = Folder::new("refused");
    let (store, model) = (&folder.0, Model::new(4, 8));
    let before = model.state();
    for count in 0..4 {
        let plan = plan(&model, store, 1, &[rule(53), rule(54)]).unwrap();
        assert_eq!(plan.steps.len(), 4);
        model.refuses_after.set(count);
        let error = plan.carry_out(&model, store).unwrap_err();
        assert!(error.to_string().contains("the model refuses"), "{error}");
        let hint = error.hint().unwrap_or_default();
        assert!(hint.starts_with("nothing was changed"), "{hint}");
        assert_eq!(model.state(), before, "after {count} steps");
        assert_eq!(store.read(&model).unwrap(), None);
    }
}

#[test]
fn a_step_that_cannot_be_undone_is_reported_and_undone_later() {
    let folder = Folder::new("stuck");
    let store = &folder.0;
    let model = Model {
        recovers: false,
        ..Model::new(4, 8)
    };
    let before = model.state();
    let plan = plan(&model, store, 1, &[rule(53)]).unwrap();
    model.refuses_after.set(2);
    let error = plan.carry_out(&model, store).unwrap_err();
    let hint = error.hint().unwrap_or_default();
    assert!(hint.contains("nic isolate eth0 --undo"), "{hint}");
    assert_ne!(model.state(), before);
    model.refuses_after.set(usize::MAX);
    undo(&model, store).unwrap();
    assert_eq!(model.state(), before);
}

#[test]
fn cards_that_cannot_are_refused_with_the_reason() {
    let folder = Folder::new("cannot");
    let store = &folder.0;
    let refusal = |change: Change, queue, rules: &[Rule]| {
        let model = Model::new(4, 8);
        change(&mut model.state.borrow_mut());
        let error = plan(&model, store, queue, rules).unwrap_err();
        assert!(error.hint().is_some(), "{error}");
        error.to_string()
    };
    let one = [rule(53)];
    let cases: [(Change, u32, &str); 6] = [
        (&|state| state.rings = 1, 0, "has one receive queue"),
        (&|state| state.rings = 0, 0, "reports no receive queues"),
        (&|_| {}, 4, "no queue 4"),
        (&|state| state.table.clear(), 1, "no RSS indirection table"),
        (&|state| state.rules = None, 1, "no rules for steering"),
        (
            &|state| state.ntuple.as_mut().unwrap().is_changeable = false,
            1,
            "off [fixed]",
        ),
    ];
    for (change, queue, why) in cases {
        let text = refusal(change, queue, &one);
        assert!(text.contains(why), "{text}");
    }
    let many = vec![rule(53); 65];
    assert!(refusal(&|_| {}, 1, &many).contains("has 64 rules"));
    // Without rules, only the indirection table is needed.
    let model = Model::new(4, 8);
    model.state.borrow_mut().rules = None;
    assert_eq!(plan(&model, store, 1, &[]).unwrap().steps.len(), 1);
}

#[test]
fn a_queue_with_rules_of_another_program_is_refused() {
    let folder = Folder::new("rules");
    for (queue, context, is_refused) in [
        (Some(1), None, true),
        (Some(0), None, false),
        (None, None, false),
        // Queue 0 plus the entry of the context's table.
        (Some(0), Some(1), true),
        (Some(0), Some(2), false),
    ] {
        let model = Model::new(4, 8);
        model.add_rule(5, 22, queue, context);
        let planned = plan(&model, &folder.0, 1, &[rule(53)]);
        assert_eq!(planned.is_err(), is_refused, "{queue:?} {context:?}");
    }
}

#[test]
fn changes_of_others_stay() {
    let folder = Folder::new("others");
    let (store, model) = (&folder.0, Model::new(4, 8));
    let plan = plan(&model, store, 3, &[rule(53)]).unwrap();
    drop(plan.carry_out(&model, store).unwrap());
    model.add_rule(7, 99, Some(3), None);
    model.state.borrow_mut().table = vec![2; 8];
    let undo = undo(&model, store).unwrap();
    assert_eq!(undo.notes.len(), 3, "{:?}", undo.notes);
    assert!(
        undo.notes[1].contains("these locations: 7;"),
        "{:?}",
        undo.notes
    );
    let state = model.state();
    assert_eq!(state.table, [2; 8]);
    assert_eq!(state.rules.unwrap().rules.len(), 1);
    assert!(state.ntuple.unwrap().is_on);
}

#[test]
fn a_table_that_the_driver_altered_is_replaced() {
    let folder = Folder::new("altered-table");
    let store = &folder.0;
    for recovers in [true, false] {
        let model = Model {
            recovers,
            alters_tables: true,
            ..Model::new(4, 8)
        };
        let before = model.state();
        let plan = plan(&model, store, 3, &[rule(53)]).unwrap();
        if !recovers {
            // The three steps are done, and no undoing.
            model.refuses_after.set(3);
        }
        let error = plan.carry_out(&model, store).unwrap_err();
        assert!(error.to_string().contains("stored another one"), "{error}");
        let hint = error.hint().unwrap_or_default();
        if recovers {
            assert!(hint.starts_with("nothing was changed"), "{hint}");
        } else {
            assert!(hint.contains("could not be undone"), "{hint}");
            assert_eq!(model.state().table, [0; 8]);
            model.refuses_after.set(usize::MAX);
            let undo = undo(&model, store).unwrap();
            assert_eq!(undo.notes, [""; 0]);
        }
        assert_eq!(model.state(), before);
        assert_eq!(store.read(&model).unwrap(), None);
    }
}

#[test]
fn rules_that_the_driver_altered_are_deleted() {
    let folder = Folder::new("altered-rules");
    let store = &folder.0;
    for chooses_location in [false, true] {
        let model = Model {
            alters_rules: true,
            ..Model::new(4, 8)
        };
        if let Some(table) = &mut model.state.borrow_mut().rules {
            table.chooses_location = chooses_location;
        }
        let before = model.state();
        let plan = plan(&model, store, 3, &[rule(53), rule(54)]).unwrap();
        drop(plan.carry_out(&model, store).unwrap());
        assert_eq!(model.state().rules.unwrap().rules.len(), 2);
        let undo = undo(&model, store).unwrap();
        assert_eq!((undo.steps.len(), undo.notes.len()), (4, 0), "{undo:?}");
        assert_eq!(model.state(), before);
    }
}

/// A process may be killed before it records the location of a rule, or anything after that.
#[test]
fn rules_of_a_killed_process_are_deleted() {
    let folder = Folder::new("killed");
    let (store, model) = (&folder.0, Model::new(4, 8));
    let before = model.state();
    let plan = plan(&model, store, 3, &[rule(53), rule(54)]).unwrap();
    let record = Record {
        added: vec![61],
        ..plan.record.clone()
    };
    drop(store.write(&model, &record).unwrap());
    model.set_ntuple(true).unwrap();
    model.add_rule(61, 99, Some(3), None);
    model.add_rule(5, 54, Some(3), None);
    model.state.borrow_mut().table = vec![2; 8];
    undo(&model, store).unwrap();
    assert_eq!(model.state(), before);
}

#[test]
fn rules_that_are_not_found_count_as_deleted_if_they_are_gone() {
    let folder = Folder::new("not-found");
    let (store, model) = (&folder.0, Model::new(4, 8));
    let before = model.state();
    let undo = || undo::undo_if_isolated(&model, store);
    assert!(undo().unwrap().is_none());
    let plan = plan(&model, store, 3, &[rule(53)]).unwrap();
    drop(plan.carry_out(&model, store).unwrap());
    model.deletion.set(Deletion::Failed);
    assert_eq!(undo().unwrap_err().kind(), ErrorKind::NotFound);
    assert!(store.read(&model).unwrap().is_some(), "kept");
    model.deletion.set(Deletion::Late);
    assert!(undo().unwrap().is_some());
    assert_eq!(model.state(), before);
}

/// A sequence of pseudo-random numbers (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as u32 % end
    }
}

/// Cards in any state, and a driver that refuses any step: afterwards the queue is isolated, or
/// nothing has changed; and after undoing nothing has changed.
#[test]
fn any_state_is_restored() {
    let seed = 0x1234_5678_9abc_def1;
    let mut random = Random(seed);
    let folder = Folder::new("random");
    let store = &folder.0;
    let (mut isolated, mut undone) = (0, 0);
    for round in 0..400 {
        let rings = 2 + random.below(6);
        let model = Model::new(rings, 1 << random.below(8));
        {
            let mut state = model.state.borrow_mut();
            for entry in &mut state.table {
                if random.below(3) == 0 {
                    *entry = random.below(rings);
                }
            }
            let is_on = random.below(2) == 0;
            let is_changeable = true;
            state.ntuple = Some(NtupleFeature {
                is_on,
                is_changeable,
            });
            state.rules.as_mut().unwrap().chooses_location = random.below(2) == 0;
        }
        let queue = random.below(rings);
        if model.state().ntuple.unwrap().is_on {
            for location in 0..random.below(4) {
                let other = (queue + 1) % rings;
                model.add_rule(random.below(2) * 32 + location, 22, Some(other), None);
            }
        }
        let before = model.state();
        let rules: Vec<_> = (0..random.below(4)).map(|i| rule(i as u16)).collect();
        let plan = plan(&model, store, queue, &rules).unwrap();
        if random.below(2) == 0 {
            model.refuses_after.set(random.below(5) as usize);
        }
        let done = plan.carry_out(&model, store);
        let state = model.state();
        let context = format!("seed {seed:#x}, round {round}: {before:?} -> {state:?}");
        if let Ok(owned) = done {
            isolated += 1;
            drop(owned);
            model.refuses_after.set(usize::MAX);
            assert!(!state.table.contains(&queue), "{context}");
            for (old, new) in before.table.iter().zip(&state.table) {
                assert!(old == new || *old == queue, "{context}");
                assert!(*new < rings, "{context}");
            }
            let to_queue = state.rules.unwrap().rules.into_iter();
            let to_queue = to_queue.filter(|rule| rule.queue == Some(queue));
            assert_eq!(to_queue.count(), rules.len(), "{context}");
            undo(&model, store).unwrap();
        } else {
            undone += 1;
        }
        assert_eq!(model.state(), before, "{context}");
        assert_eq!(store.read(&model).unwrap(), None);
    }
    assert!(isolated > 100 && undone > 50, "{isolated}, {undone}");
}

#[test]
fn entries_are_spread_over_the_other_queues() {
    let spread = |table: &[u32], queue, rings| table::without(table, queue, rings);
    assert_eq!(spread(&[0, 0, 1, 1], 1, 2), [0, 0, 0, 0]);
    assert_eq!(spread(&[3; 6], 3, 4), [0, 1, 2, 0, 1, 2]);
    assert_eq!(spread(&[0, 0, 0, 1, 2, 2], 2, 4), [0, 0, 0, 1, 1, 1]);
    // A queue that no entry names: nothing to do.
    assert_eq!(spread(&[0, 1], 2, 3), [0, 1]);
    assert!(table::is_default(&[0, 1, 2, 0], 3));
    assert!(!table::is_default(&[0, 0, 1, 1], 2));
}
