"""brokerset_formats: every file format that the brokers and jobs share.

Pure code: bytes or text in, values out, and back. Damaged input raises `errors.FormatError` and nothing else.
There is one module for each format, to be imported by its name:

- messages: `records`, `properties`, `batches`, `message_ids`, `hosts`
- derived files: `queue_units`, `index_file`, `checkpoints`
- replication: `epochs`, `identity`, `dledger`
- configuration and progress: `config` (topics, groups, offsets, name server settings), `fastjson`
- shared rules: `names`, `hashing`
"""
