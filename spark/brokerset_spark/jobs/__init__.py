"""Jobs on store files: each plans on the driver, works in tasks, and puts together a report."""
