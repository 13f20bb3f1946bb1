{{- define "text-generation.name" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "text-generation.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- /* Pods that take requests: of several nodes the first. */ -}}
{{- define "text-generation.serving" -}}
{{ include "text-generation.selector" . }}
{{- if gt (int .Values.nodes) 1 }}
leaderworkerset.sigs.k8s.io/worker-index: "0"
{{- end }}
{{- end -}}

{{- /* What is scaled. */ -}}
{{- define "text-generation.scaled" -}}
{{- if gt (int .Values.nodes) 1 -}}
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
{{- else -}}
apiVersion: apps/v1
kind: Deployment
{{- end }}
name: {{ include "text-generation.name" . }}
{{- end -}}

{{- define "text-generation.labels" -}}
{{ include "text-generation.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "text-generation.metadata" -}}
name: {{ include "text-generation.name" . }}
labels:
  {{- include "text-generation.labels" . | nindent 2 }}
{{- end -}}

{{- /* The prefix of what the endpoint picker reads follows from the name of the engine that it knows. */ -}}
{{- define "text-generation.args" -}}
- --model-id
- {{ .Values.model.id | quote }}
{{- with .Values.model.revision }}
- --revision
- {{ . | quote }}
{{- end }}
{{- with .Values.model.servedNames }}
- --served-model-name
- {{ join "," . | quote }}
{{- end }}
- --hostname
- "0.0.0.0"
- --port
- {{ .Values.ports.http | quote }}
- --prometheus-port
- {{ .Values.ports.management | quote }}
- --num-shard
- {{ max 1 .Values.gpus | quote }}
- --drain-delay
- {{ .Values.drainDelay | quote }}
- --graceful-termination-timeout
- {{ .Values.terminationTimeout | quote }}
- --shard-startup-timeout
- {{ .Values.startTimeout | quote }}
- --json-output
{{- if gt (int .Values.nodes) 1 }}
- --nnodes
- {{ .Values.nodes | quote }}
- --node-rank
- $(LWS_WORKER_INDEX)
- --master-addr
- $(LWS_LEADER_ADDRESS)
{{- if .Values.nodesSecret }}
- --cluster-cert
- /etc/text-generation-nodes/tls.crt
- --cluster-key
- /etc/text-generation-nodes/tls.key
- --cluster-ca
- /etc/text-generation-nodes/ca.crt
{{- else }}
- --cluster-insecure
{{- end }}
{{- end }}
{{- if .Values.apiKeySecret }}
- --api-key-file
- /etc/text-generation/api-keys
{{- end }}
{{- with .Values.adapters.start }}
- --lora-adapters
- {{ join "," . | quote }}
{{- end }}
{{- if .Values.adapters.existingClaim }}
- --lora-dir
- /adapters
{{- end }}
{{- if .Values.adapters.adminKeySecret }}
- --allow-adapter-loading
{{- end }}
{{- with int .Values.adapters.pages }}
- --adapter-pages
- {{ . | quote }}
{{- end }}
{{- with int .Values.adapters.hostMib }}
- --adapter-host-mib
- {{ . | quote }}
{{- end }}
{{- if .Values.inferencePool.enabled }}
- --metrics-aliases
- vllm
{{- /* The endpoint picker reads metrics on the port for requests, and has no key. */ -}}
{{- if .Values.apiKeySecret }}
- --open-metrics
{{- end }}
{{- end }}
{{- range .Values.args }}
- {{ . | quote }}
{{- end }}
{{- end -}}
