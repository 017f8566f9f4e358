#!lua
-- Notes what is asked of a run, once, and tells all processes. Sent with `allow-oom` where it is an
-- end.
-- ARGV: prefix, run, demand, message, how many may be noted or ''
local status = redis.call('HGET', key('run', ARGV[2]), 'status')
if not status then
  return 0
end
if status == 'queued' or status == 'running' then
  local asked, most = key('asked', ARGV[2]), tonumber(ARGV[5])
  if not redis.call('LPOS', asked, ARGV[3]) then
    if most and redis.call('LLEN', asked) >= most then
      return 2
    end
    redis.call('RPUSH', asked, ARGV[3])
  end
  redis.call('PUBLISH', PREFIX .. ':control', ARGV[4])
end
return 1
