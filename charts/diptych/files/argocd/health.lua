-- Argo CD's health of an Agent: for argocd-cm, key resource.customizations.health.diptych.dev_Agent.
-- Degraded: somebody must do something, or no pod comes up. Progressing: it will be well by itself,
-- or when what it uses comes, in whatever order. Argo CD fails a sync at Degraded, not at Progressing.
local hs = { status = "Progressing", message = "No operator has seen it yet." }
local status = obj.status
if status == nil or status.conditions == nil then
  return hs
end
if status.observedGeneration ~= obj.metadata.generation then
  hs.message = "The operator has not seen the newest manifest yet."
  return hs
end
local is, reasons = {}, {}
for _, condition in ipairs(status.conditions) do
  is[condition.type] = condition.status
  reasons[condition.type] = condition.reason
end
hs.message = status.advice or ""
if reasons.Stalled == "Paused" then
  hs.status = "Suspended"
elseif is.Stalled == "True" then
  hs.status = "Degraded"
elseif is.Ready == "True" then
  if is.ResolvedRefs == "True" and is.Degraded ~= "True" and is.ToolsDrifted ~= "True" then
    hs.status = "Healthy"
  elseif is.ToolsDrifted == "True" then
    hs.status = "Degraded"
  end
elseif reasons.Ready ~= "RollingOut" and reasons.Ready ~= "FormerOwner" then
  hs.status = "Degraded"
end
return hs
