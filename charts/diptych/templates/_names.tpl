{{- /* Names, labels, the image, and the settings that all pods share. */ -}}

{{- define "diptych.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains .Chart.Name .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- /* A cluster-scoped object's name: two releases of one name in two namespaces do not clash. */ -}}
{{- define "diptych.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "diptych.fullname" .) }}
{{- end }}

{{- define "diptych.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "diptych.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- /*
What never changes, for selectors: a dict of "root" and "component". The agents' NetworkPolicies know
the operator's pods by `name` and `component`.
*/ -}}
{{- define "diptych.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "diptych.labels" -}}
{{ include "diptych.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: diptych
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "diptych.imageOf" -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag }}
{{- end }}
{{- end }}

{{- define "diptych.image" -}}
{{- $tag := default .Chart.AppVersion .Values.image.tag -}}
{{- include "diptych.imageOf" (dict "repository" .Values.image.repository "digest" .Values.image.digest "tag" $tag) }}
{{- end }}

{{- /* Where every pod of this release runs, by .Values.global: part of a pod's spec. */ -}}
{{- define "diptych.podSettings" -}}
{{- with .Values.global.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.global.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.global.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.global.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{- /* The same for the agents' pods: what the operator lays over them. */ -}}
{{- define "diptych.agentTemplate" -}}
{{- $metadata := dict }}
{{- with .Values.global.podLabels }}{{ $_ := set $metadata "labels" . }}{{ end }}
{{- with .Values.global.podAnnotations }}{{ $_ := set $metadata "annotations" . }}{{ end }}
{{- $template := dict }}
{{- with $metadata }}{{ $_ := set $template "metadata" . }}{{ end }}
{{- with include "diptych.podSettings" . | fromYaml }}{{ $_ := set $template "spec" . }}{{ end }}
{{- toYaml $template }}
{{- end }}

{{- /* What the platform sets for all agents, beside the pod template: a file. */ -}}
{{- define "diptych.agents" -}}
{{- toYaml .Values.agents }}
{{- end }}

{{- /* What the operator reads of who may do what: a file. */ -}}
{{- define "diptych.access" -}}
{{- toYaml (dict "issuers" .Values.access.issuers "grants" .Values.access.grants) }}
{{- end }}

{{- /* Pod Security "restricted", for a pod and for a container. */ -}}
{{- define "diptych.podSecurity" -}}
runAsNonRoot: true
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "diptych.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- /* How many bytes Redis may fill: half of its memory limit, a quantity such as 128Mi. The rest is
for the gaps that deletions leave, and for what ends runs in a full store. Empty without a limit. */ -}}
{{- define "diptych.redisMaxMemory" -}}
{{- $limit := dig "limits" "memory" "" (.Values.redis.resources | default dict) }}
{{- if not (kindIs "string" $limit) }}{{ $limit = printf "%.0f" (float64 $limit) }}{{ end }}
{{- with $limit }}
{{- $units := dict "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "m" 0.001 }}
{{- $unit := get $units (regexFind "[a-zA-Z]+$" .) | default 1 }}
{{- mulf (regexFind "^[0-9.]+" .) $unit 0.5 | floor | int64 }}
{{- end }}
{{- end }}

{{- /* Whether the chart's admission policies are wanted, and the API has them: "yes" or nothing. */ -}}
{{- define "diptych.admission" -}}
{{- if and .Values.admission.enabled (.Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy") -}}
yes
{{- end }}
{{- end }}

{{- /* The name of an admission policy: a dict of "root" and "what". It stands in every refusal. */ -}}
{{- define "diptych.policyName" -}}
{{- printf "%s-%s.%s" (include "diptych.fullname" .root) .what .root.Release.Namespace }}
{{- end }}

{{- /* What puts a policy into force: where Agents are served, or "everywhere". */ -}}
{{- define "diptych.policyBinding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ include "diptych.policyName" . }}
  labels:
    {{- include "diptych.labels" (dict "root" .root "component" "admission") | nindent 4 }}
spec:
  policyName: {{ include "diptych.policyName" . }}
  validationActions: [Deny]
  {{- if and .root.Values.watchNamespaces (not .everywhere) }}
  matchResources:
    namespaceSelector:
      matchExpressions:
      - key: kubernetes.io/metadata.name
        operator: In
        values:
          {{- toYaml .root.Values.watchNamespaces | nindent 10 }}
  {{- end }}
{{- end }}

{{- /* The PodSpec of a kind's template, such as `runtime.podTemplate`; none if it has no template. */ -}}
{{- define "diptych.pod" -}}
{{- if . -}}
object.spec.?{{ . | replace "." ".?" }}.?spec.orValue({})
{{- else -}}
"{}"
{{- end }}
{{- end }}

{{- /* What the policies for templates count on; first, so that this is what is said if it does not hold. */ -}}
{{- define "diptych.podShape" -}}
- expression: >-
    ['containers', 'initContainers', 'ephemeralContainers', 'volumes', 'imagePullSecrets'].all(f,
      !(f in variables.pod) || type(variables.pod[f]) == list
      && variables.pod[f].all(entry, type(entry) == map))
  message: >-
    containers, initContainers, volumes and imagePullSecrets of spec.{{ . }}.spec must be lists of
    mappings.
{{- end }}
