"""TLS of the remoting protocol, on the port that plain clients use, as RocketMQ has it (`DESIGN.md`)."""

from brokerset_runtime.tls.client_tls import ClientTls, ServerTrust, ShownPair, trust_of
from brokerset_runtime.tls.config import TlsConfig, TlsMode, read_tls_config
from brokerset_runtime.tls.contexts import ENVIRONMENT_VARIABLE, Tls, tls_of_environment
from brokerset_runtime.tls.session import TlsError

__all__ = [
    "ENVIRONMENT_VARIABLE",
    "ClientTls",
    "ServerTrust",
    "ShownPair",
    "Tls",
    "TlsConfig",
    "TlsError",
    "TlsMode",
    "read_tls_config",
    "tls_of_environment",
    "trust_of",
]
