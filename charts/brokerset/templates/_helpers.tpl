{{/* Name of everything in the release's namespace. */}}
{{- define "brokerset.fullname" -}}
{{- .Values.fullnameOverride | default (printf "%s-operator" (.Release.Name | trunc 43 | trimSuffix "-")) -}}
{{- end }}

{{/* Name of what has no namespace: two releases of one name in two namespaces must not share it. */}}
{{- define "brokerset.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "brokerset.fullname" .) -}}
{{- end }}

{{- define "brokerset.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "brokerset.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end }}

{{- define "brokerset.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end }}

{{/* Image of jobs on store files; empty when none is named. */}}
{{- define "brokerset.sparkImage" -}}
{{- with .Values.spark.image -}}
{{- if and .repository .digest -}}
{{- printf "%s@%s" .repository .digest -}}
{{- else if .repository -}}
{{- printf "%s:%s" .repository (.tag | default $.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Role of a job that has Spark executors, in namespaces that are listed, or in the whole cluster. */}}
{{- define "brokerset.driverRole" -}}
{{- if .Values.watchNamespaces -}}
{{- printf "Role/%s-driver" (include "brokerset.fullname" .) -}}
{{- else -}}
{{- printf "ClusterRole/%s:driver" (include "brokerset.clusterName" .) -}}
{{- end -}}
{{- end }}

{{/*
All that a Spark driver asks for about pods: it waits until its own is ready (get, list, watch), makes those of its
executors, labels those that it gives up (patch), and removes them. Nothing else: no claims, which are brokers'
volumes, no Services and no ConfigMaps; the settings of jobs (operator's `spark_pods`) switch off what would need them.
*/}}
{{- define "brokerset.driverRules" -}}
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, patch, delete, deletecollection]
{{- end }}

{{/* Labels that select the operator's pods; these never change. */}}
{{- define "brokerset.selectorLabels" -}}
app.kubernetes.io/name: brokerset-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "brokerset.labels" -}}
{{ include "brokerset.selectorLabels" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: brokerset
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Scheme of probes; the kubelet checks no certificate. */}}
{{- define "brokerset.probeScheme" -}}
{{ if .Values.operatorTls.secretName }}HTTPS{{ else }}HTTP{{ end }}
{{- end }}

{{/* The name that the operator's certificate is for. */}}
{{- define "brokerset.serverName" -}}
{{ include "brokerset.fullname" . }}.{{ .Release.Namespace }}.svc
{{- end }}

{{/* The restricted pod security standard, for the operator and for tests. */}}
{{- define "brokerset.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "brokerset.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/*
What the operator may do in a namespace that it looks after. It cannot run anything in pods, read Secrets unless
`tls.authority` or `secrets.access` asks for it, make pods, or change rights other than those that it has itself: brokers are given get and patch of EndpointSlices. Logs are read
of its own Jobs, whose results stand there. With `spark.executors` it may bind one role more, for the drivers of jobs.
*/}}
{{- define "brokerset.rules" -}}
- apiGroups: [brokerset.io]
  resources: [brokersets]
  verbs: [get, list, watch]
- apiGroups: [brokerset.io]
  resources: [topics, subjects, users]
  verbs: [get, list, watch, patch]
- apiGroups: [brokerset.io]
  resources: [storeaudits, storemigrations, storeexports]
  verbs: [get, list, watch]
- apiGroups: [brokerset.io]
  resources: [brokersets/status, topics/status, subjects/status, users/status, storeaudits/status, storemigrations/status, storeexports/status]
  verbs: [patch]
# Needed to name an object as the owner of what is made for it.
- apiGroups: [brokerset.io]
  resources: [brokersets/finalizers, users/finalizers, storeaudits/finalizers, storemigrations/finalizers, storeexports/finalizers]
  verbs: [update]
{{- if .Values.secrets.access }}
# Users and passwords of sets with acl.secretName, and of objects of the kind User.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, list, watch, create, patch]
{{- end }}
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
- apiGroups: [""]
  resources: [configmaps, services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, delete]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [serviceaccounts]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors, prometheusrules]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [get, create, patch]
{{- if .Values.tls.authority.enabled }}
# Of Secrets that it does not own it reads whose they are, by name; it lists, watches and deletes none.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create, update]
{{- end }}
{{- if .Values.tls.certManager.enabled }}
- apiGroups: [cert-manager.io]
  resources: [certificates]
  verbs: [get, create, patch, delete]
{{- end }}
{{- end }}
