"""Membership of a broker group: identity on disk, registration with controllers, role."""
