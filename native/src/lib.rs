//! The byte work of a brokerset broker: what runs for every message, and decides nothing.
//!
//! Python decides: roles, topics, permission, refusals. What is unusual is declined here and served by the
//! Python path of the same request, which is complete, and the reference for what this crate does.

pub mod hashing;
pub mod index;
pub mod properties;
pub mod records;
pub mod scan;

#[cfg(feature = "python")]
mod receiving;

#[cfg(feature = "python")]
mod python {
    use pyo3::prelude::*;

    /// Number of the interface between the Python code and this module; both sides must have the same.
    const INTERFACE: u32 = 1;

    #[pymodule]
    fn brokerset_native(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("INTERFACE", INTERFACE)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        crate::receiving::register(module)?;
        Ok(())
    }
}
