{{/* The operator's name, also of its rights: one for each release. */}}
{{- define "millstream.operator" -}}
{{- if eq .Release.Name "millstream" -}}millstream-operator{{- else -}}{{ printf "%s-millstream-operator" .Release.Name | trunc 63 | trimSuffix "-" }}{{- end -}}
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
runAsUser: 1000
runAsGroup: 1000
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "millstream.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Binds the ClusterRole .role to the ServiceAccount .account: everywhere, or in the watched namespaces. */}}
{{- define "millstream.binding" -}}
{{- $root := .root }}{{ $role := .role }}{{ $account := .account }}{{ $annotations := .annotations }}
{{- $namespaces := $root.Values.operator.watchNamespaces }}
{{- range $namespace := ($namespaces | default (list "")) }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ if $namespace }}RoleBinding{{ else }}ClusterRoleBinding{{ end }}
metadata:
  name: {{ $role }}
  {{- with $namespace }}
  namespace: {{ . }}
  {{- end }}
  labels: {{- include "millstream.labels" $root | nindent 4 }}
  {{- with $annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {{ $role }}}
subjects:
- {kind: ServiceAccount, name: {{ $account }}, namespace: {{ $root.Release.Namespace }}}
{{- end }}
{{- end }}
