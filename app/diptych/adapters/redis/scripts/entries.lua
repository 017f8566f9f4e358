#!lua flags=no-writes
-- Lists the runs of sessions: order, run, session, created, status, seq, one after another.
-- ARGV: prefix, session …
local found = {}
for i = 2, #ARGV do
  local runs = redis.call('ZRANGE', key('runs', ARGV[i]), 0, -1, 'WITHSCORES')
  for j = 1, #runs, 2 do
    local meta = redis.call('HMGET', key('run', runs[j]), 'created', 'status', 'seq')
    if meta[1] and redis.call('EXISTS', key('log', runs[j])) == 1 then
      for _, value in ipairs({ runs[j + 1], runs[j], ARGV[i], meta[1], meta[2], meta[3] }) do
        found[#found + 1] = value
      end
    end
  end
end
return found
