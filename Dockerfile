# Two stages: wheels are built and checked against the lock in the first, the second holds only what runs.
ARG BASE=python:3.11-slim
FROM ${BASE} AS build
WORKDIR /src
COPY locks/runtime.txt locks/
RUN python3 -m venv /opt/brokerset && /opt/brokerset/bin/pip install --no-cache-dir --require-hashes -r locks/runtime.txt \
    && /opt/brokerset/bin/pip install --no-cache-dir 'hatchling>=1.27'
COPY pyproject.toml README.md LICENSE ./
COPY libs libs
COPY broker broker
COPY controller controller
COPY operator operator
COPY spark spark
RUN /opt/brokerset/bin/pip install --no-cache-dir --no-deps --no-build-isolation . \
    && /opt/brokerset/bin/pip uninstall -y hatchling pathspec pluggy trove-classifiers

FROM ${BASE} AS runtime
COPY --from=build /opt/brokerset /opt/brokerset
ENV PATH=/opt/brokerset/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
RUN mkdir /data && chown 10001:10001 /data
USER 10001:10001
WORKDIR /data
EXPOSE 9876 10911 10912 8080
ENTRYPOINT ["brokerset"]
CMD ["--help"]
