#!/bin/bash
# What a container of the image for jobs runs: Spark's executor when Kubernetes is asked for one (its pods have the
# one argument `executor` and their settings in the environment), Spark's driver for who submits to the cluster
# (`driver` and options of spark-submit), else what it is told.
# Why it did not start is told in a sentence where Kubernetes looks for one, as jobs do (brokerset_spark.termination).
set -euo pipefail
fail() {
	printf '%s' "$1" >"${BROKERSET_TERMINATION_LOG:-/dev/null}" || true
	printf '%s\n' "$1" >&2
	exit 2
}
need() {
	for name in "$@"; do
		[[ -v $name ]] ||
			fail "the $role did not start: $name is not set. What to do: let Spark make its pod, or give a command"
	done
}
if [[ ${1:-} != executor && ${1:-} != driver ]]; then
	type -P "${1:-}" >/dev/null ||
		fail "the job did not start: the image has no program '${1:-}'. What to do: correct the container's command"
	exec "$@"
fi
role=$1
SPARK_HOME=${SPARK_HOME:-$(python -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')}
if [[ $1 == driver ]]; then
	need SPARK_DRIVER_BIND_ADDRESS
	export SPARK_HOME
	exec "$SPARK_HOME/bin/spark-submit" --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \
		--deploy-mode client "${@:2}"
fi
need SPARK_EXECUTOR_MEMORY SPARK_DRIVER_URL SPARK_EXECUTOR_ID SPARK_EXECUTOR_CORES SPARK_APPLICATION_ID \
	SPARK_EXECUTOR_POD_IP SPARK_RESOURCE_PROFILE_ID SPARK_EXECUTOR_POD_NAME
mapfile -d '' options < <(env -0 | sed -zn 's/^SPARK_JAVA_OPT_[0-9]*=//p')
exec java "${options[@]}" -Xms"$SPARK_EXECUTOR_MEMORY" -Xmx"$SPARK_EXECUTOR_MEMORY" \
	-cp "${SPARK_CONF_DIR:-/opt/spark/conf}:$SPARK_HOME/jars/*" \
	org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
	--driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
	--app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
	--resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
