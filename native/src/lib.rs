//! The byte work of a brokerset broker: what runs for every message, and decides nothing.
//!
//! Python decides: roles, topics, permission, refusals. What is unusual is declined here and served by the
//! Python path of the same request, which is complete, and the reference for what this crate does.

pub mod acks;
pub mod asides;
pub mod batches;
pub mod ends;
pub mod filter_programs;
pub mod filtered_units;
pub mod frames;
pub mod hashing;
pub mod headers;
pub mod index;
pub mod plain;
pub mod properties;
pub mod pull_headers;
pub mod pull_units;
pub mod records;
pub mod replies;
pub mod scan;
pub mod signatures;
pub mod signed_fields;
pub mod timer_links;
pub mod timer_units;
pub mod waiting_records;

#[cfg(feature = "python")]
mod ack_lane;
#[cfg(feature = "python")]
mod cursors;
#[cfg(feature = "python")]
mod filters;
#[cfg(feature = "python")]
mod linking;
#[cfg(feature = "python")]
mod memory;
#[cfg(feature = "python")]
mod pulls;
#[cfg(feature = "python")]
mod receiving;
#[cfg(feature = "python")]
mod releases;
#[cfg(feature = "python")]
mod sends;

#[cfg(feature = "python")]
mod python {
    use pyo3::prelude::*;

    use crate::cursors::{IndexCursor, LogCursor, QueueCursor};
    use crate::pulls::PullReader;
    use crate::sends::SendLane;

    /// Number of the interface between the Python code and this module; both sides must have the same.
    const INTERFACE: u32 = 10;

    #[pymodule]
    fn brokerset_native(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("INTERFACE", INTERFACE)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add_class::<LogCursor>()?;
        module.add_class::<QueueCursor>()?;
        module.add_class::<IndexCursor>()?;
        module.add_class::<SendLane>()?;
        module.add_class::<PullReader>()?;
        crate::ack_lane::register(module)?;
        crate::filters::register(module)?;
        crate::linking::register(module)?;
        crate::receiving::register(module)?;
        crate::releases::register(module)?;
        Ok(())
    }
}
