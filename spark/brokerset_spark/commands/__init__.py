"""`python -m brokerset_spark JOB …`: one module for each job, loaded when it is called."""
