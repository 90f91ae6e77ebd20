"""The BrokerSet manifest and the settings of every process, as typed values."""
