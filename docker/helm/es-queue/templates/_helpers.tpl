{{/* What every object of this release is called and labelled. Call with (dict "root" $ "component" "worker"). */}}
{{- define "es-queue.name" -}}
{{ .root.Release.Name | trunc 40 | trimSuffix "-" }}-{{ .component }}
{{- end }}

{{- define "es-queue.selector" -}}
app.kubernetes.io/name: es-queue
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "es-queue.labels" -}}
{{ include "es-queue.selector" . }}
app.kubernetes.io/part-of: es-queue
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- define "es-queue.metadata" -}}
name: {{ include "es-queue.name" . }}
labels: {{- include "es-queue.labels" . | nindent 2 }}
{{- end }}

{{/* (dict "root" $ "image" "worker") */}}
{{- define "es-queue.image" -}}
{{- $images := .root.Values.images -}}
image: {{ with $images.registry }}{{ . | trimSuffix "/" }}/{{ end }}es-queue-{{ .image }}:{{ $images.tag | default .root.Chart.AppVersion }}
imagePullPolicy: {{ $images.pullPolicy }}
{{- end }}

{{/* The address for a user of Redis, whose password comes from a file: (dict "root" $ "user" "worker") */}}
{{- define "es-queue.url" -}}
{{- $redis := .root.Values.redis -}}
{{- if $redis.enabled -}}
redis://{{ .user }}@{{ include "es-queue.name" (dict "root" .root "component" "redis") }}:6379
{{- else -}}
redis{{ if $redis.tls }}s{{ end }}://{{ .user }}@{{ $redis.address }}
{{- end }}
{{- end }}

{{/* The restricted pod security standard. */}}
{{- define "es-queue.pod" -}}
automountServiceAccountToken: false
{{- with .Values.images.pullSecrets }}
imagePullSecrets: {{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "es-queue.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* Nodes that are not taken away at two minutes' notice. */}}
{{- define "es-queue.on-demand" -}}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        - matchExpressions:
            - {key: karpenter.sh/capacity-type, operator: NotIn, values: [spot]}
            - {key: eks.amazonaws.com/capacityType, operator: NotIn, values: [SPOT]}
            - {key: cloud.google.com/gke-spot, operator: NotIn, values: ["true"]}
            - {key: kubernetes.azure.com/scalesetpriority, operator: NotIn, values: [spot]}
{{- end }}

{{- define "es-queue.spot" -}}
affinity:
  nodeAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - {weight: 100, preference: {matchExpressions: [{key: karpenter.sh/capacity-type, operator: In, values: [spot]}]}}
      - {weight: 100, preference: {matchExpressions: [{key: eks.amazonaws.com/capacityType, operator: In, values: [SPOT]}]}}
      - {weight: 100, preference: {matchExpressions: [{key: cloud.google.com/gke-spot, operator: In, values: ["true"]}]}}
      - {weight: 100, preference: {matchExpressions: [{key: kubernetes.azure.com/scalesetpriority, operator: In, values: [spot]}]}}
{{- end }}

{{- define "es-queue.spot-tolerations" -}}
- {key: cloud.google.com/gke-spot, operator: Equal, value: "true", effect: NoSchedule}
- {key: kubernetes.azure.com/scalesetpriority, operator: Equal, value: spot, effect: NoSchedule}
- {key: es-queue/spot, operator: Exists, effect: NoSchedule}
{{- end }}
