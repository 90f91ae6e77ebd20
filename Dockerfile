# One image for all parts: brokers, controllers, the operator and the command line.
#   wheel    builds the wheel, with tools that go nowhere else
#   native   builds the wheel of the native core, with Rust as Debian ships it
#   packages the locked dependencies and both wheels, in a virtual environment of its own
#   runtime  Python and that environment
#   spark    the same with Java and Spark, for jobs on store files (`make image-spark`)
# It runs as user 10001 with a read-only root file system; give it a writable /data (and /tmp, which nothing needs today).
# There is no HEALTHCHECK: what is healthy depends on the part that runs. Every server answers /healthz and /readyz on its HTTP port.
ARG BASE=python:3.11-slim

FROM ${BASE} AS wheel
WORKDIR /src
COPY locks/build.txt locks/
RUN python3 -m venv /opt/build && /opt/build/bin/python -m pip install --no-cache-dir --disable-pip-version-check --require-hashes -r locks/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY libs libs
COPY broker broker
COPY controller controller
COPY operator operator
COPY spark spark
RUN /opt/build/bin/python -m hatchling build -t wheel -d /wheel

FROM ${BASE} AS native
WORKDIR /src
# Bookworm's own cargo is too old; cargo-web is the one that Debian keeps for browsers. Later releases have a cargo that will do.
RUN apt-get update && { apt-get install --yes --no-install-recommends gcc libc6-dev cargo-web \
    || apt-get install --yes --no-install-recommends gcc libc6-dev cargo; } && rm -rf /var/lib/apt/lists/* /var/cache/apt/*
COPY locks/build.txt locks/
RUN python3 -m venv /opt/build && /opt/build/bin/python -m pip install --no-cache-dir --disable-pip-version-check --require-hashes -r locks/build.txt
COPY native native
RUN /opt/build/bin/maturin build --release --locked -m native/Cargo.toml -o /wheel

FROM ${BASE} AS packages
COPY locks/operator.txt /locks/
RUN python3 -m venv /opt/brokerset && /opt/brokerset/bin/python -m pip install --no-cache-dir --disable-pip-version-check --require-hashes -r /locks/operator.txt
COPY --from=wheel /wheel /wheel
COPY --from=native /wheel /wheel
RUN /opt/brokerset/bin/python -m pip install --no-cache-dir --disable-pip-version-check --no-index --no-deps /wheel/*.whl \
    && /opt/brokerset/bin/python -m pip uninstall --yes pip setuptools
COPY generate/sbom.py pyproject.toml native/Cargo.lock /bill/
RUN cd /bill && mkdir -p /opt/brokerset/share && python3 sbom.py /locks/operator.txt --cargo Cargo.lock --name brokerset > /opt/brokerset/share/brokerset.cdx.json

FROM ${BASE} AS spark-packages
COPY locks/spark.txt /locks/
RUN python3 -m venv /opt/brokerset && /opt/brokerset/bin/python -m pip install --no-cache-dir --disable-pip-version-check --require-hashes -r /locks/spark.txt
COPY --from=wheel /wheel /wheel
COPY --from=native /wheel /wheel
RUN /opt/brokerset/bin/python -m pip install --no-cache-dir --disable-pip-version-check --no-index --no-deps /wheel/*.whl \
    && /opt/brokerset/bin/python -m pip uninstall --yes pip setuptools
COPY generate/sbom.py pyproject.toml native/Cargo.lock /bill/
RUN cd /bill && mkdir -p /opt/brokerset/share && python3 sbom.py /locks/spark.txt --cargo Cargo.lock --name brokerset-spark > /opt/brokerset/share/brokerset-spark.cdx.json

FROM ${BASE} AS spark
LABEL org.opencontainers.image.title="brokerset-spark" \
      org.opencontainers.image.description="Jobs on RocketMQ store files and topics: audit, verify, migrate, export, lake; also as Spark executors" \
      org.opencontainers.image.licenses="Apache-2.0"
# Slim images have no folder for manual pages, and Java's package fails without it.
RUN mkdir -p /usr/share/man/man1 && apt-get update && apt-get install --yes --no-install-recommends openjdk-17-jre-headless tini \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/*
RUN echo 'brokerset:x:10001:10001::/data:/usr/sbin/nologin' >> /etc/passwd && echo 'brokerset:x:10001:' >> /etc/group \
    && mkdir /data && chown 10001:10001 /data
COPY --from=spark-packages /opt/brokerset /opt/brokerset
COPY spark/entrypoint.sh /opt/brokerset/bin/job-entrypoint
# The kernels are compiled now, for every processor of the architecture: its name and features are part of what finds a cached kernel.
ENV PATH=/opt/brokerset/bin:$PATH PYTHONUNBUFFERED=1 PYSPARK_PYTHON=/opt/brokerset/bin/python PYSPARK_DRIVER_PYTHON=/opt/brokerset/bin/python \
    NUMBA_CACHE_DIR=/opt/brokerset/kernels NUMBA_CPU_NAME=generic NUMBA_CPU_FEATURES=""
RUN python -c "import brokerset_spark.kernels.compiled" \
    && BROKERSET_NATIVE=require python -c "import deltalake, pyarrow, pyspark, brokerset_formats.native, brokerset_spark.commands.table, brokerset_spark.commands.audit, brokerset_spark.commands.lake, brokerset_spark.jobs.lake.exporting, brokerset_spark.jobs.lake.iceberg_table, brokerset_spark.jobs.lake.parquet_table, brokerset_spark.jobs.migrate"
# Where Kubernetes looks for a container's last words, unless a pod says otherwise.
ENV PYTHONDONTWRITEBYTECODE=1 BROKERSET_TERMINATION_LOG=/dev/termination-log
USER 10001:10001
WORKDIR /data
ENTRYPOINT ["tini", "--", "job-entrypoint"]
CMD ["python", "-m", "brokerset_spark", "--help"]

FROM ${BASE} AS runtime
LABEL org.opencontainers.image.title="brokerset" \
      org.opencontainers.image.description="RocketMQ-compatible messaging: brokers, controllers with name servers, operator, command line" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN echo 'brokerset:x:10001:10001::/data:/usr/sbin/nologin' >> /etc/passwd && echo 'brokerset:x:10001:' >> /etc/group \
    && mkdir /data && chown 10001:10001 /data
COPY --from=packages /opt/brokerset /opt/brokerset
ENV PATH=/opt/brokerset/bin:$PATH PYTHONUNBUFFERED=1
# What the parts import is compiled now: with a read-only root each start would compile it anew.
RUN BROKERSET_NATIVE=require python -c "import aiohttp.web, kopf, prometheus_client, brokerset_broker.app, brokerset_controller.app, brokerset_operator, brokerset_cli.main"
ENV PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /data
EXPOSE 8080 9876 9877 9878 10909 10911 10912
ENTRYPOINT ["brokerset"]
CMD ["--help"]
