"""Who may do what: users, policies, signatures what each request needs. As RocketMQ's ACL 2.0; pure."""
