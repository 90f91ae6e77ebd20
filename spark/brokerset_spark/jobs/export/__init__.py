"""Messages of a store as Parquet files, by topic and day. `exporting.export` is the job."""
