//! Units of a queue, and where the records that they name are in one file of the log.
//!
//! Source: `brokerset_broker.store.reading`: the case of a pull that gets all records of its units.

pub const UNIT_SIZE: usize = 20;

/// Adjacent records: position in the file of the log, and bytes.
pub type Run = (usize, usize);

/// Finds the records of whole `units` in a file whose readable part has the offsets from `start` to `end`.
///
/// Returns the bytes of all; `runs` gets where they are, neighbours as one. None if a unit names anything that
/// is not there, or all together have more than `bytes_max`.
pub fn find_records(
    units: &[u8],
    start: i64,
    end: i64,
    bytes_max: usize,
    runs: &mut Vec<Run>,
) -> Option<usize> {
    runs.clear();
    let mut total = 0usize;
    for unit in units.chunks_exact(UNIT_SIZE) {
        let offset = i64::from_be_bytes(unit[..8].try_into().ok()?);
        let size = i32::from_be_bytes(unit[8..12].try_into().ok()?);
        if size <= 0 || offset < start || offset.checked_add(size.into())? > end {
            return None;
        }
        let (position, size) = ((offset - start) as usize, size as usize);
        total = total.checked_add(size)?;
        if total > bytes_max {
            return None;
        }
        match runs.last_mut() {
            Some((begin, length)) if *begin + *length == position => *length += size,
            _ => runs.push((position, size)),
        }
    }
    (total > 0).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(found: &[(i64, i32)]) -> Vec<u8> {
        let mut data = Vec::new();
        for (offset, size) in found {
            data.extend_from_slice(&offset.to_be_bytes());
            data.extend_from_slice(&size.to_be_bytes());
            data.extend_from_slice(&7i64.to_be_bytes());
        }
        data
    }

    fn find(found: &[(i64, i32)]) -> Option<(usize, Vec<Run>)> {
        let mut runs = Vec::new();
        find_records(&units(found), 1000, 2000, 300, &mut runs).map(|size| (size, runs))
    }

    #[test]
    fn neighbours_are_one_run() {
        assert_eq!(
            find(&[(1000, 100), (1100, 50), (1400, 20), (1420, 30)]),
            Some((200, vec![(0, 150), (400, 50)]))
        );
    }

    #[test]
    fn records_up_to_the_end_are_found() {
        assert_eq!(find(&[(1900, 100)]), Some((100, vec![(900, 100)])));
    }

    #[test]
    fn what_is_not_there_is_declined() {
        for unit in [
            (999, 100),
            (1901, 100),
            (1000, 0),
            (1000, -5),
            (-1, 100),
            (i64::MAX, 100),
            (1000, i32::MAX),
        ] {
            assert_eq!(find(&[(1000, 100), unit]), None, "{unit:?}");
        }
        assert_eq!(find(&[]), None);
    }

    #[test]
    fn more_than_the_limit_is_declined() {
        assert!(find(&[(1000, 150), (1200, 150)]).is_some());
        assert_eq!(find(&[(1000, 150), (1200, 151)]), None);
    }
}
