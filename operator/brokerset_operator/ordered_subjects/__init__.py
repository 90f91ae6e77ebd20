"""Ordered subjects, as Subjects want them; decides, touches nothing."""
