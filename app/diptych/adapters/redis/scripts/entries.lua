#!lua flags=no-writes
-- Lists the runs of sessions: of each its order and id, and what `part.META` names.
-- ARGV: prefix, session …
local found = {}
for i = 2, #ARGV do
  local runs = redis.call('ZRANGE', key('runs', ARGV[i]), 0, -1, 'WITHSCORES')
  for j = 1, #runs, 2 do
    local meta = meta_of(runs[j])
    if meta[1] and redis.call('EXISTS', key('log', runs[j])) == 1 then
      found[#found + 1] = { runs[j + 1], runs[j], unpack(meta) }
    end
  end
end
return found
