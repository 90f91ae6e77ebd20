#!/bin/bash
# What a container of the image for jobs runs: Spark's executor when Kubernetes is asked for one (its pods have the
# one argument `executor` and their settings in the environment), Spark's driver for who submits to the cluster
# (`driver` and options of spark-submit), else what it is told.
set -euo pipefail
if [[ ${1:-} != executor && ${1:-} != driver ]]; then
	exec "$@"
fi
SPARK_HOME=${SPARK_HOME:-$(python -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')}
if [[ $1 == driver ]]; then
	export SPARK_HOME
	exec "$SPARK_HOME/bin/spark-submit" --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \
		--deploy-mode client "${@:2}"
fi
mapfile -d '' options < <(env -0 | sed -zn 's/^SPARK_JAVA_OPT_[0-9]*=//p')
exec java "${options[@]}" -Xms"$SPARK_EXECUTOR_MEMORY" -Xmx"$SPARK_EXECUTOR_MEMORY" \
	-cp "${SPARK_CONF_DIR:-/opt/spark/conf}:$SPARK_HOME/jars/*" \
	org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
	--driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
	--app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
	--resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
