{{- /* One node of a server: metadata and spec of a pod, for a Deployment or a LeaderWorkerSet. */ -}}
{{- define "text-generation.pod" -}}
metadata:
  labels:
    {{- include "text-generation.labels" . | nindent 4 }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  # Requests are taken for drainDelay more seconds, finish within terminationTimeout, and shards stop.
  terminationGracePeriodSeconds: {{ add .Values.drainDelay .Values.terminationTimeout 10 }}
  # The server asks nothing of the cluster.
  automountServiceAccountToken: false
  enableServiceLinks: false
  {{- with .Values.serviceAccountName }}
  serviceAccountName: {{ . }}
  {{- end }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    seccompProfile:
      type: RuntimeDefault
  containers:
    - name: server
      image: "{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}"
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args:
        {{- include "text-generation.args" . | nindent 8 }}
      {{- if or .Values.env .Values.model.tokenSecret .Values.adapters.adminKeySecret (gt (int .Values.nodes) 1) }}
      env:
        {{- if gt (int .Values.nodes) 1 }}
        - name: LOCAL_ADDR
          valueFrom:
            fieldRef:
              fieldPath: status.podIP
        {{- end }}
        {{- with .Values.model.tokenSecret }}
        - name: HF_TOKEN
          valueFrom:
            secretKeyRef:
              name: {{ . }}
              key: HF_TOKEN
        {{- end }}
        {{- with .Values.adapters.adminKeySecret }}
        - name: ADMIN_API_KEY
          valueFrom:
            secretKeyRef:
              name: {{ . }}
              key: admin-api-key
        {{- end }}
        {{- with .Values.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- end }}
      ports:
        - name: http
          containerPort: {{ .Values.ports.http }}
        - name: management
          containerPort: {{ .Values.ports.management }}
      # The port for probes is open from the first second on, and says 503 for /ready until the server serves.
      startupProbe:
        httpGet:
          path: /ready
          port: management
        periodSeconds: 5
        failureThreshold: {{ max 1 (div .Values.startTimeout 5) }}
      readinessProbe:
        httpGet:
          path: /ready
          port: management
        periodSeconds: 5
        timeoutSeconds: 3
        failureThreshold: 2
      livenessProbe:
        httpGet:
          path: /live
          port: management
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      resources:
        {{- $resources := deepCopy .Values.resources }}
        {{- if .Values.gpus }}
        {{- $devices := dict .Values.gpuResource (toString .Values.gpus) }}
        {{- $resources = merge (dict "limits" (merge (dict) $devices (default (dict) $resources.limits))) $resources }}
        {{- end }}
        {{- toYaml $resources | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities:
          drop: [ALL]
      volumeMounts:
        - name: cache
          mountPath: /data
        - name: temporary
          mountPath: /tmp
        - name: shared-memory
          mountPath: /dev/shm
        {{- if .Values.apiKeySecret }}
        - name: api-keys
          mountPath: /etc/text-generation
          readOnly: true
        {{- end }}
        {{- if .Values.adapters.existingClaim }}
        - name: adapters
          mountPath: /adapters
          readOnly: true
        {{- end }}
        {{- if and (gt (int .Values.nodes) 1) .Values.nodesSecret }}
        - name: nodes
          mountPath: /etc/text-generation-nodes
          readOnly: true
        {{- end }}
  volumes:
    - name: cache
      {{- if .Values.cache.existingClaim }}
      persistentVolumeClaim:
        claimName: {{ .Values.cache.existingClaim }}
      {{- else }}
      emptyDir: {{ if .Values.cache.sizeLimit }}{sizeLimit: {{ .Values.cache.sizeLimit }}}{{ else }}{}{{ end }}
      {{- end }}
    - name: temporary
      emptyDir: {}
    - name: shared-memory
      emptyDir:
        medium: Memory
        sizeLimit: {{ .Values.sharedMemory }}
    {{- with .Values.apiKeySecret }}
    - name: api-keys
      secret:
        secretName: {{ . }}
        defaultMode: 0440
        items:
          - key: api-keys
            path: api-keys
    {{- end }}
    {{- with .Values.adapters.existingClaim }}
    - name: adapters
      persistentVolumeClaim:
        claimName: {{ . }}
        readOnly: true
    {{- end }}
    {{- if and (gt (int .Values.nodes) 1) .Values.nodesSecret }}
    - name: nodes
      secret:
        secretName: {{ .Values.nodesSecret }}
        defaultMode: 0440
    {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .Values.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
{{- end -}}
