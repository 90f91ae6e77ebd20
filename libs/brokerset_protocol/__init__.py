"""The wire: RocketMQ remoting frames, headers, codes and bodies. Pure."""
