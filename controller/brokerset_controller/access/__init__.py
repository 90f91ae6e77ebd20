"""Users and policies of the whole cluster, as the controllers agree on them."""
