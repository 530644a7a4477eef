{{- define "octavo.fullname" -}}
{{- if contains "octavo" .Release.Name -}}
{{ printf "%s-operator" .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-octavo-operator" .Release.Name | trunc 63 | trimSuffix "-" }}
{{- end -}}
{{- end -}}

{{- define "octavo.selector" -}}
app.kubernetes.io/name: octavo
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "octavo.labels" -}}
{{ include "octavo.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "octavo.operatorImage" -}}
{{ printf "%s:%s" .Values.operator.image.repository (.Values.operator.image.tag | default .Chart.AppVersion) }}
{{- end -}}

{{- define "octavo.runtimeImage" -}}
{{ printf "%s:%s" .Values.runtime.image.repository (.Values.runtime.image.tag | default .Chart.AppVersion) }}
{{- end -}}

{{/* Rules in the namespaces that are served; the list is the docstring of octavo_operator/main.py. */}}
{{- define "octavo.rules" -}}
- apiGroups: [serving.octavo.dev]
  resources: [modeldeployments]
  verbs: [get, list, watch]
- apiGroups: [serving.octavo.dev]
  resources: [modeldeployments/status]
  verbs: [update]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services, serviceaccounts]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- end -}}
