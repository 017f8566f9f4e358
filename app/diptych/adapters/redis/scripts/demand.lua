#!lua flags=allow-oom
-- Notes how a run shall end, and tells all processes; the first end that was asked for counts.
-- ARGV: prefix, run, end, message
local status = redis.call('HGET', key('run', ARGV[2]), 'status')
if not status then
  return 0
end
if status == 'queued' or status == 'running' then
  redis.call('HSETNX', key('run', ARGV[2]), 'end', ARGV[3])
  redis.call('PUBLISH', PREFIX .. ':control', ARGV[4])
end
return 1
