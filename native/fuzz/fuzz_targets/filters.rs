//! A program, and units and records that it examines: what is found lies in the log, and no limit is passed by more
//! than one message.
#![no_main]

use brokerset_native::filter_programs::Program;
use brokerset_native::filtered_units::{Wanted, select};
use brokerset_native::pull_units::UNIT_SIZE;
use libfuzzer_sys::fuzz_target;

const START: i64 = 4096;

fuzz_target!(|data: &[u8]| {
    let Some((&[code_size, unit_count], rest)) = data.split_first_chunk::<2>() else {
        return;
    };
    let (code, rest) = rest.split_at(rest.len().min(code_size.into()));
    let (units, log) = rest.split_at(rest.len().min(usize::from(unit_count) * UNIT_SIZE));
    let program = Program::read(code);
    if let Some(program) = &program {
        program.evaluate(log);
    }
    for codes in [None, Some(&[0, 7][..])] {
        let wanted = Wanted {
            codes,
            program: program.as_ref(),
            messages_max: 3,
            bytes_max: 1_000,
            properties_max: 500,
        };
        let mut runs = Vec::new();
        let end = START + log.len() as i64;
        let found = select(units, log, START, end, &wanted, &mut runs);
        assert!(found.messages <= 3 && found.messages <= found.examined);
        assert!(found.examined <= units.len() / UNIT_SIZE);
        let bytes: usize = runs.iter().map(|(_, size)| size).sum();
        assert_eq!(bytes, found.bytes);
        for (position, size) in runs {
            assert!(position + size <= log.len());
        }
    }
});
