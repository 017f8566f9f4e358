#!lua flags=no-writes
-- Says of the run whose turn it is: its id, the bytes of what must be read to execute it, and how
-- many of its owners have died; counting the last one, if it has gone and nobody has claimed since.
-- ARGV: prefix, session
local session = ARGV[2]
local run = redis.call('LINDEX', key('queue', session), 0)
if not run then
  return false
end
local size = 0
for _, each in ipairs({ key('log', run), key('asked', run), key('said', session) }) do
  size = size + (redis.call('MEMORY', 'USAGE', each, 'SAMPLES', 0) or 0)
end
local deaths = tonumber(redis.call('HGET', key('run', run), 'deaths') or 0)
return { run, size, deaths + (has_died(session) and 1 or 0) }
