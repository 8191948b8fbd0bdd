{{/* The operator's name: one for each release of a namespace. */}}
{{- define "millstream.operator" -}}
{{- if eq .Release.Name "millstream" -}}millstream-operator{{- else -}}{{ printf "%s-millstream-operator" .Release.Name | trunc 55 | trimSuffix "-" }}{{- end -}}
{{- end }}

{{/* The name of its rights, which may be outside its namespace: one for each release of the Kubernetes cluster. */}}
{{- define "millstream.rightsName" -}}
{{ .Release.Namespace }}:{{ include "millstream.operator" . }}
{{- end }}

{{- define "millstream.labels" -}}
app.kubernetes.io/name: millstream
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* image REPOSITORY:TAG; call with (list $ .Values.images.NAME) */}}
{{- define "millstream.image" -}}
{{- $root := index . 0 }}{{ $image := index . 1 -}}
{{ printf "%s:%s" $image.repository ($image.tag | default $root.Chart.AppVersion) }}
{{- end }}

{{- define "millstream.podSecurity" -}}
runAsNonRoot: true
{{- if ne .Values.operator.userIds "Assigned" }}
runAsUser: 1000
runAsGroup: 1000
{{- end }}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "millstream.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/*
Rights for the ServiceAccount .account of the release's namespace by the name .name: .rules is the name of a template.
A Role in each watched namespace, or a ClusterRole where all namespaces are watched. Without .account nobody has them yet.
*/}}
{{- define "millstream.rights" -}}
{{- $root := .root }}{{ $name := .name }}{{ $account := .account }}{{ $annotations := .annotations }}{{ $rules := .rules }}
{{- range $namespace := ($root.Values.operator.watchNamespaces | default (list "")) }}
{{- $kind := ternary "Role" "ClusterRole" (ne $namespace "") }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}
metadata: {{- include "millstream.rightsMetadata" (dict "root" $root "name" $name "namespace" $namespace "annotations" $annotations) | nindent 2 }}
rules:
{{- include $rules $root }}
{{- with $account }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}Binding
metadata: {{- include "millstream.rightsMetadata" (dict "root" $root "name" $name "namespace" $namespace "annotations" $annotations) | nindent 2 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: {{ $kind }}, name: {{ $name | quote }}}
subjects:
- {kind: ServiceAccount, name: {{ . }}, namespace: {{ $root.Release.Namespace }}}
{{- end }}
{{- end }}
{{- end }}

{{- define "millstream.rightsMetadata" -}}
name: {{ .name | quote }}
{{- with .namespace }}
namespace: {{ . }}
{{- end }}
labels: {{- include "millstream.labels" .root | nindent 2 }}
{{- with .annotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The Role or ClusterRole of Spark's driver, as KIND/NAME. */}}
{{- define "millstream.sparkName" -}}
{{ include "millstream.rightsName" . }}-spark
{{- end }}
{{- define "millstream.sparkRole" -}}
{{ if .Values.operator.watchNamespaces }}Role{{ else }}ClusterRole{{ end }}/{{ include "millstream.sparkName" . }}
{{- end }}

{{/* Whether an object of Prometheus's operator is made: call with (list $ VALUE KIND); VALUE is Auto, true or false. */}}
{{- define "millstream.wanted" -}}
{{- $root := index . 0 }}{{ $value := index . 1 | toString }}{{ $kind := index . 2 -}}
{{- if or (eq $value "true") (and (eq $value "Auto") ($root.Capabilities.APIVersions.Has (printf "monitoring.coreos.com/v1/%s" $kind))) -}}
true
{{- end -}}
{{- end }}

{{/* What listeners of new Clusters are that state nothing. Without the right to Secrets they cannot be secure. */}}
{{- define "millstream.newClusters" -}}
{{ ternary .Values.operator.newClusters "Open" .Values.operator.users }}
{{- end }}
