#!lua flags=no-writes
-- Lists the runs of sessions: of each the order, the id and `client.RUN_FIELDS`.
-- ARGV: prefix, session …
local found = {}
for i = 2, #ARGV do
  local runs = redis.call('ZRANGE', key('runs', ARGV[i]), 0, -1, 'WITHSCORES')
  for j = 1, #runs, 2 do
    local fields = run_fields(runs[j])
    if fields[1] and redis.call('EXISTS', key('log', runs[j])) == 1 then
      found[#found + 1] = { runs[j + 1], runs[j], unpack(fields) }
    end
  end
end
return found
