-- Prepended to each of the master's five scripts. KEYS[1] is the epoch, ARGV[1] the caller's token "<n>-<nonce>".
-- Accepted: a higher n than stored, the very same string, or nothing stored. A new one is stored first of all
-- writes, so that a server out of memory refuses the whole script before it has changed anything; the stored one
-- is left alone, so that a master at work can renew its lease although memory is short.
local function number_of(token)
  return tonumber(string.match(token, '^(%d+)%-') or '0')
end

local epoch = redis.call('GET', KEYS[1])
if epoch and epoch ~= ARGV[1] and number_of(ARGV[1]) <= number_of(epoch) then
  return redis.error_reply('FENCED another master holds this run')
end
-- It stays for 30 days, as all of a run does, and each publish begins them again: a master that was killed leaves nothing for ever.
if epoch ~= ARGV[1] then redis.call('SET', KEYS[1], ARGV[1], 'EX', 2592000) end

-- Arguments are read in order; a counted list is its length and then its items.
local position = 1
local function argument()
  position = position + 1
  return ARGV[position]
end
local function list()
  local items = {}
  for i = 1, tonumber(argument()) do items[i] = argument() end
  return items
end

local function in_pieces(command, key, items)
  for first = 1, #items, 1000 do
    redis.call(command, key, unpack(items, first, math.min(first + 999, #items)))
  end
end

-- Who may only work may write any text into lists, hashes and sets of these names, and as many as the server has memory for.
-- What is not of its type, or is larger than any of ours, goes: what it held is owed, and the living say again that they live.
local LONGEST_BLOCK, MOST_WORKERS, WORKERS_BYTES = 120, 20000, 16777216

-- The length of a list, 0 if it is missing. A key of another type is removed, and so is a longer or larger list: the length
-- and the size are known before anything is read, for a script holds up every run on the server.
local function length_of(key, bytes, longest)
  local length = redis.pcall('LLEN', key)
  if length == 0 then return 0 end
  local spoilt = type(length) == 'table' or length > longest
  if not spoilt and redis.call('MEMORY', 'USAGE', key, 'SAMPLES', 0) <= bytes then return length end
  redis.call('UNLINK', key)
  return 0
end

-- A list's entries; none if it is longer than ``longest`` or larger than ``bytes``.
local function entries(key, bytes, longest)
  return length_of(key, bytes, longest) > 0 and redis.call('LRANGE', key, 0, -1) or {}
end

local function is_worker(id)
  if #id > 140 then return false end
  local name, pid = string.match(id, '^([%w._-]+)%-(%d+)%-[0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f]$')
  return name ~= nil and #name <= 120 and #pid <= 10
end

-- The set of workers without what is no worker's id.
local function members(key)
  local count = redis.pcall('SCARD', key)
  local wrong = type(count) == 'table' or count > MOST_WORKERS
  if not wrong and count > 0 then wrong = redis.call('MEMORY', 'USAGE', key, 'SAMPLES', 0) > WORKERS_BYTES end
  if wrong then redis.call('UNLINK', key) end
  local found = {}
  for _, id in ipairs(not wrong and redis.call('SMEMBERS', key) or {}) do
    if is_worker(id) then found[#found + 1] = id else redis.call('SREM', key, id) end
  end
  return found
end

-- Close what stands open besides the publication itself, in the asynchronous schedule: all but those in keep.
local function close_older(progress, prefix, keep)
  local length = redis.call('HSTRLEN', progress, 'open')
  local open = length > 0 and length <= 16384 and redis.call('HGET', progress, 'open') or ''
  for publication in string.gmatch(open, '%d+%.%d+%-%x+') do
    if not keep[publication] then redis.call('UNLINK', prefix .. 'results:' .. publication, prefix .. 'parameters:' .. publication) end
  end
end

-- Whether a results stream takes no more answers, or soon will not: whoever may answer may give an entry an id of the
-- far future, and all later ids are higher.
local function spoilt(key)
  local about = redis.pcall('XINFO', 'STREAM', key)
  local tomorrow = (tonumber(redis.call('TIME')[1]) + 86400) * 1000
  for i = 1, #about - 1, 2 do
    if about[i] == 'last-generated-id' then return tonumber(string.match(about[i + 1], '^%d+')) > tomorrow end
  end
  return true -- no stream
end
